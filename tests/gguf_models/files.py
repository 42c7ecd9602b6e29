"""GGUF files for the tests: the zoo's pair in several formats, and small random models."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks.engines.gguf_files import write_llama
from draftwood import zoo

FORMATS = ["F32", "BF16", "Q8_0", "Q4_0"]


@cache
def zoo_file(folder: Path, kind: str, name: str = "llama-7m") -> Path:
    """A model of the zoo with weights of a format."""
    file = folder / f"{name}-{kind}.gguf"
    if not file.exists():
        model = AutoModelForCausalLM.from_pretrained(zoo.path(name), dtype=torch.float32)
        words = json.loads((zoo.path("tokenizer") / "tokenizer.json").read_text(encoding="utf-8"))
        write_llama(model, words, file, kind)
    return file


SHAPES = {
    "token_embd": ("vocab", "width"),
    "output": ("vocab", "width"),
    "output_norm": ("width",),
    "attn_norm": ("width",),
    "attn_q": ("all_heads", "width"),
    "attn_k": ("key_heads", "width"),
    "attn_v": ("key_heads", "width"),
    "attn_output": ("width", "all_heads"),
    "attn_q_norm": ("head",),
    "attn_k_norm": ("head",),
    "post_attention_norm": ("width",),
    "ffn_norm": ("width",),
    "post_ffw_norm": ("width",),
    "ffn_gate": ("inner", "width"),
    "ffn_up": ("inner", "width"),
    "ffn_down": ("width", "inner"),
}
FAMILIES: dict[str, tuple[str, ...]] = {
    "llama": (
        "attn_norm",
        "attn_q",
        "attn_k",
        "attn_v",
        "attn_output",
        "ffn_norm",
        "ffn_gate",
        "ffn_up",
        "ffn_down",
    ),
}
FAMILIES["qwen3"] = (*FAMILIES["llama"], "attn_q_norm", "attn_k_norm")
FAMILIES["gemma3"] = (*FAMILIES["qwen3"], "post_attention_norm", "post_ffw_norm")


def random_file(
    file: Path,
    family: str = "llama",
    *,
    kind: str = "F32",
    vocab: int = 96,
    layers: int = 3,
    context: int = 512,
    window: int | None = None,
    switch: int | None = None,
    seed: int = 0,
) -> Path:
    """A random model without a tokenizer, unless the file is there already.

    Args:
        file: where it goes.
        family: of `FAMILIES`.
        kind: format of its matrices.
        vocab: its tokens.
        layers: its layers.
        context: tokens for which it says that it was made.
        window: of attention, in all layers but every sixth.
        switch: tokens beyond which its rotations are others.
        seed: of its weights.
    """
    import gguf

    if file.exists():
        return file
    sizes = {"vocab": vocab, "width": 32, "inner": 64, "head": 8, "all_heads": 32, "key_heads": 16}
    draws = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(file, family)
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if kind == 'F32' else 'MOSTLY'}_{kind}"])
    writer.add_context_length(context)
    writer.add_embedding_length(sizes["width"])
    writer.add_block_count(layers)
    writer.add_feed_forward_length(sizes["inner"])
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(sizes["head"])
    writer.add_value_length(sizes["head"])
    writer.add_rope_dimension_count(sizes["head"])
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)
    writer.add_tokenizer_model("none")
    if window is not None:
        writer.add_sliding_window(window)
    names = ["token_embd", "output", "output_norm"]
    names += [f"blk.{layer}.{name}" for layer in range(layers) for name in FAMILIES[family]]
    for name in names:
        shape = [sizes[word] for word in SHAPES[name.split(".")[-1]]]
        weight: Any = draws.standard_normal(shape).astype(np.float32)
        # Large enough that attention matters, and that tokens differ.
        weight = 1 + weight / 10 if len(shape) == 1 else weight * 1.5 / np.sqrt(shape[1])
        one = gguf.GGMLQuantizationType["F32" if len(shape) == 1 else kind]
        writer.add_tensor(
            f"{name}.weight", gguf.quants.quantize(weight.astype(np.float32), one), raw_dtype=one
        )
    if switch is not None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE)
        writer.add_rope_scaling_orig_ctx_len(switch)
        for length, factor in (("long", 4.0), ("short", 1.0)):
            writer.add_tensor(f"rope_factors_{length}.weight", np.full(4, factor, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


def greedy(model: Any, prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """Returns what llama.cpp writes by itself, and for each token the gap between the two best logits."""
    text, gaps = list(prompt), list[float]()
    for _ in range(count):
        best, second = model.logits(text).topk(2).values.tolist()
        text.append(int(model.logits(text).argmax()))
        gaps.append(best - second)
    return text[len(prompt) :], gaps
