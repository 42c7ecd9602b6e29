"""Medusa heads as they are published: read with the logits of their maker's forward, or refused truly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import silu

from draftwood import InvalidInput, SpeculativeDecoder, create
from draftwood.drafters import BlockDrafter, Eagle3, MedusaHeads, Mtp, PEagle
from draftwood.strategies.drafters.medusa import Heads, load_heads
from draftwood.strategies.heads.formats import load_head
from draftwood.strategies.heads.found import folder_of
from draftwood.zoo.heads.convert import converted
from tests.strategies.feature_heads import WIDTH, target

VOCAB = 23
# As FasterDecoding/medusa-vicuna-7b-v1.3 and Narsil/mistral-medusa describe themselves on the hub.
VICUNA = {
    "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
    "medusa_num_heads": 2,
    "medusa_num_layers": 1,
    "transformers_version": "4.31.0",
}
LINEAR = {**VICUNA, "medusa_num_layers": 0, "transformers_version": "4.36.1"}
VLLM = {
    "architectures": ["MedusaModel"],
    "hidden_size": WIDTH,
    "max_paths": 64,
    "model_type": "medusa",
    "num_heads": 2,
    "num_hidden_layers": 1,
    "topk": 10,
    "truncated_vocab_size": VOCAB,
    "vocab_size": VOCAB,
}


def tensors(count: int, layers: int, *, vllm: bool = False) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator) * 0.3

    found: dict[str, torch.Tensor] = {}
    for head in range(count):
        if layers:
            block = f"blocks.{head}.layers.0" if vllm else f"{head}.0.linear"
            found |= {f"{block}.weight": drawn(WIDTH, WIDTH), f"{block}.bias": drawn(WIDTH)}
        found[f"lm_heads.{head}.weight" if vllm else f"{head}.{layers}.weight"] = drawn(VOCAB, WIDTH)
    return found


def written(folder: Path, described: dict[str, Any], stored: dict[str, torch.Tensor], name: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(described))
    save_file(stored, folder / (name or "medusa_lm_head.safetensors"))
    return folder


@pytest.mark.parametrize(
    ("described", "count", "layers", "vllm"),
    # The makers' file holds five heads where its description says two.
    [(VICUNA, 5, 1, False), (LINEAR, 2, 0, False), (VLLM, 2, 1, True)],
)
@torch.no_grad()
def test_published_heads_have_the_logits_of_their_forward(
    described: dict[str, Any], count: int, layers: int, vllm: bool, tmp_path: Path
) -> None:
    stored = tensors(count, layers, vllm=vllm)
    written(tmp_path, described, stored, "model.safetensors" if vllm else "")
    readers = (Eagle3, PEagle, BlockDrafter, Mtp, MedusaHeads)
    assert [one for one in readers if one.reads(tmp_path)] == [MedusaHeads]
    heads = load_heads(tmp_path)
    assert (heads.count, heads.hidden_size, heads.vocab_size) == (count, WIDTH, VOCAB)
    states = torch.randn(3, WIDTH)
    found = heads(states)
    for head in range(count):
        made = states
        if layers:
            block = f"blocks.{head}.layers.0" if vllm else f"{head}.0.linear"
            made = states + silu(states @ stored[f"{block}.weight"].T + stored[f"{block}.bias"])
        output = stored[f"lm_heads.{head}.weight" if vllm else f"{head}.{layers}.weight"]
        torch.testing.assert_close(found[head], made @ output.T)


def test_they_draft_by_their_folder_and_the_text_is_the_targets(tmp_path: Path) -> None:
    folder = written(tmp_path, VICUNA, tensors(2, 1))
    policy = create("policies", "chain", {"length": 2, "law": "top-k"})
    decoder = SpeculativeDecoder(target(), str(folder), policy, create("verifiers", "greedy"))
    prompt = torch.tensor([[3, 5, 7, 2]])
    text: Any = decoder.generate(prompt, max_new_tokens=12)
    assert torch.equal(text, target().generate(prompt, max_new_tokens=12, do_sample=False))


def test_a_pickle_is_converted(tmp_path: Path) -> None:
    old = tmp_path / "old"
    stored = tensors(2, 1)
    written(old, VICUNA, stored)
    (old / "medusa_lm_head.safetensors").unlink()
    torch.save(stored, old / "medusa_lm_head.pt")
    with pytest.raises(
        InvalidInput, match=r"medusa_lm_head.pt in .* is a pickle, .* `draftwood convert-head"
    ):
        load_heads(folder_of(old))
    assert converted(old, tmp_path / "new") == len(stored)
    assert torch.equal(load_heads(tmp_path / "new").output[1], stored["1.1.weight"])
    with pytest.raises(InvalidInput, match="already holds safetensors"):
        converted(tmp_path / "new", tmp_path / "again")


@pytest.mark.parametrize(
    ("described", "change", "sentence"),
    [
        ({**VICUNA, "medusa_num_layers": 2}, {}, "medusa_num_layers is 2 in .*; Medusa heads with one resid"),
        ({**VICUNA, "medusa_num_heads": 3}, {}, "lacks the output weight of head 2, .* names 3"),
        ({**VICUNA, "choices": []}, {}, "has the key 'choices', which is not known here"),
        ({**VLLM, "truncated_vocab_size": 5}, {}, "truncated_vocab_size is 5"),
        (VICUNA, {"token_map": torch.zeros(3)}, "holds token_map, which Medusa heads of 1 residual block"),
        (VICUNA, {"2.0.linear.bias": torch.zeros(WIDTH)}, "lacks the output weight of head 2"),
        (
            VICUNA,
            {"1.1.weight": torch.zeros(VOCAB + 1, WIDTH)},
            r"output weight of Medusa head 1 .* shape \(24, 16\)",
        ),
        (VICUNA, {"1.1.weight": torch.zeros(VOCAB, WIDTH, dtype=torch.int8)}, "1.1.weight in .* is int8"),
    ],
)
def test_heads_that_are_refused(
    described: dict[str, Any], change: dict[str, torch.Tensor], sentence: str, tmp_path: Path
) -> None:
    written(tmp_path, described, {**tensors(2, 1), **change})
    assert MedusaHeads.reads(tmp_path)
    with pytest.raises(InvalidInput, match=sentence) as error:
        load_heads(tmp_path)
    assert "\n" not in str(error.value)


def test_a_head_of_eagle_1_is_told_as_one(tmp_path: Path) -> None:
    described = {"architectures": ["LlamaForCausalLMEagle"], "model_type": "llama", "hidden_size": 16}
    written(tmp_path, described, {"fc.weight": torch.zeros(16, 32)}, "model.safetensors")
    assert Eagle3.reads(tmp_path)
    with pytest.raises(InvalidInput, match="a head of EAGLE-1 or EAGLE-2, which reads the target's last"):
        load_head(tmp_path)


LAYER = ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "post_attention_layernorm")


@pytest.mark.parametrize(("form", "prefix"), [("safetensors", ""), ("safetensors", "model."), ("pickle", "")])
def test_a_head_of_eagle_1_that_calls_itself_a_llama_is_told_by_its_tensors(
    form: str, prefix: str, tmp_path: Path
) -> None:
    described = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 1}
    names = ("fc.weight", "embed_tokens.weight", *(f"layers.0.{part}.weight" for part in LAYER))
    stored = {prefix + name: torch.zeros(4, 4) for name in names}
    if form == "pickle":
        (tmp_path / "config.json").write_text(json.dumps(described))
        torch.save(stored, tmp_path / "pytorch_model.bin")
    else:
        written(tmp_path, described, stored, "model.safetensors")
    assert Eagle3.reads(tmp_path)
    with pytest.raises(InvalidInput, match="a head of EAGLE-1 or EAGLE-2, which reads the target's last"):
        load_head(tmp_path)
    # A language model of one layer is none, nor is one of several layers looked into.
    stored = {f"model.{name}": torch.zeros(4, 4) for name in names if name != "fc.weight"}
    for layers in (1, 2):
        folder = written(
            tmp_path / str(layers),
            {**described, "num_hidden_layers": layers},
            {**stored, "lm_head.weight": torch.zeros(4, 4)},
            "model.safetensors",
        )
        assert not Eagle3.reads(folder)


def test_a_module_is_one_of_theirs() -> None:
    assert MedusaHeads.reads(Heads(1, 2, 3))
