"""GGUF files of a Llama of transformers, for llama.cpp."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

FORMATS = {"target": ("F32", "BF16", "Q8_0", "Q4_0"), "draft": ("F32",)}
"""Formats of the weights by model."""

NAMES = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
"""llama.cpp's names of a layer's weights."""


def is_installed() -> bool:
    """Whether the package that writes GGUF files can be imported."""
    return importlib.util.find_spec("gguf") is not None


def write(folder: Path) -> Iterator[Path]:
    """Write `folder/gguf/NAME-FORMAT.gguf` of the transformers folders `target` and `draft`; yields each."""
    if not is_installed():
        return
    (folder / "gguf").mkdir()
    for name, formats in FORMATS.items():
        model = AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32)
        tokenizer = json.loads((folder / name / "tokenizer.json").read_text(encoding="utf-8"))
        for kind in formats:
            to = folder / "gguf" / f"{name}-{kind}.gguf"
            write_llama(model, tokenizer, to, kind)
            yield to


def write_llama(model: Any, tokenizer: dict[str, Any], to: Path, kind: str) -> None:
    """Write `model`, a Llama with tied embeddings and a byte-level tokenizer, with weights of a format.

    Args:
        model: in float32.
        tokenizer: the content of its `tokenizer.json`.
        to: the file.
        kind: format of the matrices, such as "Q8_0"; vectors are float32.
    """
    import gguf

    config = model.config
    writer = gguf.GGUFWriter(to, "llama")
    writer.add_file_type(gguf.LlamaFileType[f"{'ALL' if kind == 'F32' else 'MOSTLY'}_{kind}"])
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    _add_tokenizer(writer, tokenizer, config)
    quantized = getattr(gguf.GGMLQuantizationType, kind)
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":  # tied to the embedding
            continue
        to_name = _name(name)
        if (count := heads.get(to_name.split(".")[-2])) is not None:
            # llama.cpp rotates neighbours, transformers the halves of a head.
            weight = weight.view(count, 2, -1, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        array = weight.contiguous().numpy()
        one = quantized if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(to_name, gguf.quants.quantize(array, one), raw_dtype=one)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _name(name: str) -> str:
    """llama.cpp's name of a weight."""
    outer = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    if name in outer:
        return outer[name]
    _, _, layer, rest = name.split(".", 3)
    return f"blk.{layer}.{NAMES[rest.removesuffix('.weight')]}.weight"


def _add_tokenizer(writer: Any, tokenizer: dict[str, Any], config: Any) -> None:
    import gguf

    special = {one["id"] for one in tokenizer["added_tokens"]}
    tokens = sorted(tokenizer["model"]["vocab"].items(), key=lambda item: item[1])
    kinds = gguf.TokenType
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([token for token, _ in tokens])
    writer.add_token_types([kinds.CONTROL if number in special else kinds.NORMAL for _, number in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    writer.add_pad_token_id(config.pad_token_id)
    writer.add_add_bos_token(False)
