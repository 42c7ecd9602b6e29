"""Hydra heads as they are published: drafts equal to their maker's forward from raw tensors, or refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import silu

from draftwood import InvalidInput, Outcome, Request, SpeculativeDecoder, UnsupportedModel, create, load
from draftwood.drafters import Hydra, MedusaHeads
from draftwood.strategies.heads.found import folder_of
from draftwood.testing import DrafterWithTarget, check_strategy
from draftwood.zoo.heads.convert import converted
from tests.strategies import published
from tests.strategies.feature_heads import WIDTH, target

VOCAB, HEADS, INNER = 23, 3, 20
Tensors = dict[str, torch.Tensor]
# As ankner/hydra-vicuna-13b-v1.3 describes itself, with fewer heads.
PREFIX = {
    "base_model_name_or_path": "lmsys/vicuna-13b-v1.3",
    "grounded_heads": True,
    "hidden_state_offset": 0,
    "hydra_head_arch": "prefix-mlp",
    "hydra_num_heads": HEADS,
    "hydra_num_layers": 3,
    "transformers_version": "4.33.2",
}
PLAIN = {**PREFIX, "hydra_head_arch": "mlp", "hydra_num_layers": 1, "hidden_state_offset": 2}


def tensors(described: dict[str, Any]) -> Tensors:
    """By the names of the maker's modules: with the prefix layer, dropout takes every other place."""
    draw = published.Drawn()
    layered = described["hydra_head_arch"] == "prefix-mlp"
    step, last = (2, ".1") if layered else (1, "")
    made: Tensors = {}
    for head in range(described["hydra_num_heads"]):
        for block in range(described["hydra_num_layers"]):
            name = f"hydra_mlp.{head}.{block * step + step - 1}"
            wide = WIDTH * (head + 2) if not block else WIDTH
            made |= {f"{name}.linear.weight": draw(WIDTH, wide), f"{name}.linear.bias": draw(WIDTH)}
            if not block:
                made |= {
                    f"{name}.res_connection.weight": draw(WIDTH, wide),
                    f"{name}.res_connection.bias": draw(WIDTH),
                }
        made |= {
            f"hydra_lm_head.{head}{last}.weight": draw(VOCAB, WIDTH),
            f"hydra_lm_head.{head}{last}.bias": draw(VOCAB),
        }
    made["input_embed_fn.weight"] = draw(VOCAB, WIDTH)
    if layered:
        config = target().config
        dim = config.hidden_size // config.num_attention_heads
        sizes = {
            "hidden_size": WIDTH,
            "head_dim": getattr(config, "head_dim", None) or dim,
            "intermediate_size": config.intermediate_size,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
        }
        prefix = "prefix_embeding_layer."
        made |= published.decoder_layer(draw, sizes, f"{prefix}layers.0.", WIDTH, False)
        made |= {f"{prefix}norm.weight": draw(WIDTH), f"{prefix}embed_tokens.weight": draw(VOCAB, WIDTH)}
        made[f"{prefix}layers.0.self_attn.rotary_emb.inv_freq"] = draw(dim // 2)
    return made


def written(folder: Path, described: dict[str, Any], stored: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(described))
    save_file(stored, folder / "hydra_lm_head.safetensors")
    return folder


def expected(described: dict[str, Any], stored: Tensors, text: list[int], path: list[int]) -> torch.Tensor:
    """Logits after `path`, which begins with the root, from the target's states of `text`."""
    model = target()
    states = model(torch.tensor([text]), output_hidden_states=True).hidden_states
    read = states[-1 - described["hidden_state_offset"]][0]
    step = 1
    if described["hydra_head_arch"] == "prefix-mlp":
        step, name = 2, "prefix_embeding_layer.layers.0."
        config = model.config
        layer = {
            "head_dim": getattr(config, "head_dim", None) or WIDTH // config.num_attention_heads,
            "rms_norm_eps": config.rms_norm_eps,
            "rope_parameters": config.rope_parameters,
        }
        eps, at = config.rms_norm_eps, torch.arange(len(text))
        normed = published.norm(stored[f"{name}input_layernorm.weight"], read, eps)
        seen = torch.ones(len(text), len(text), dtype=torch.bool).tril()
        read = read + published.attention(
            layer, stored, name, queries=normed, keys=normed, at=(at, at), seen=seen
        )
        normed = published.norm(stored[f"{name}post_attention_layernorm.weight"], read, eps)
        read = read + published.mlp(stored, name, normed)
        read = published.norm(stored["prefix_embeding_layer.norm.weight"], read, eps)
    head = len(path) - 1
    if head >= described["hydra_num_heads"]:
        return torch.full((VOCAB,), -torch.inf, dtype=torch.float64)
    made = torch.cat([read[-1], *model.get_input_embeddings()(torch.tensor(path))])
    for block in range(described["hydra_num_layers"]):
        name = f"hydra_mlp.{head}.{block * step + step - 1}"
        kept = made
        if not block:
            kept = stored[f"{name}.res_connection.weight"] @ made + stored[f"{name}.res_connection.bias"]
        made = kept + silu(stored[f"{name}.linear.weight"] @ made + stored[f"{name}.linear.bias"])
    last = f"hydra_lm_head.{head}{'.1' if step == 2 else ''}"
    return stored[f"{last}.weight"] @ made + stored[f"{last}.bias"]


KINDS = {"with a prefix layer": PREFIX, "plain": PLAIN}


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_drafts_are_those_of_the_makers_forward_after_many_rounds(kind: str, tmp_path: Path) -> None:
    described = KINDS[kind]
    stored = tensors(described)
    backend = load(target())
    folder = written(tmp_path, described, stored)
    assert Hydra.reads(folder)
    assert not MedusaHeads.reads(folder)
    pair = DrafterWithTarget(backend, Hydra(backend, folder))
    texts: list[list[int]] = [[3, 1, 4], [7], [2, 2, 9, 8, 1, 6]]
    pair.prefill([torch.tensor(text, dtype=torch.int64) for text in texts])
    parents = [-1, 0, 0, 1, 3, 2]  # two branches, one of them as deep as the last head and one more
    for step in range(2):
        drafted = [[(5 * row + step + node * 3) % VOCAB for node in range(6)] for row in range(3)]
        got = pair.distributions([Request(torch.tensor(tokens), torch.tensor(parents)) for tokens in drafted])
        for row, tokens in enumerate(drafted):
            for node in range(6):
                path: list[int] = []
                at = node
                while at >= 0:
                    path, at = [tokens[at], *path], parents[at]
                wanted = expected(described, stored, texts[row], path)
                torch.testing.assert_close(got[row, node], wanted, atol=1e-5, rtol=1e-5)
        taken = [[tokens[0], tokens[1]] for tokens in drafted[:2]] + [[]]
        pair.commit([Outcome(range(len(t)), t, extra=0, bonus=True, drafted=5) for t in taken])
        texts = [text + path for text, path in zip(texts, taken, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_it_keeps_the_protocol_of_drafters(kind: str, tmp_path: Path) -> None:
    backend = load(target())
    folder = written(tmp_path, KINDS[kind], tensors(KINDS[kind]))
    check_strategy(DrafterWithTarget(backend, Hydra(backend, folder)))


def test_they_draft_by_their_folder_and_the_text_is_the_targets(tmp_path: Path) -> None:
    folder = written(tmp_path, PREFIX, tensors(PREFIX))
    policy = create("policies", "layered-dyspec", {"budget": 8, "law": "top-k"})
    decoder = SpeculativeDecoder(target(), str(folder), policy, create("verifiers", "greedy"))
    assert isinstance(decoder.drafter, Hydra)
    prompt = torch.tensor([[3, 5, 7, 2]])
    text: Any = decoder.generate(prompt, max_new_tokens=12)
    assert torch.equal(text, target().generate(prompt, max_new_tokens=12, do_sample=False))


def test_a_pickle_is_converted(tmp_path: Path) -> None:
    old, stored = tmp_path / "old", tensors(PREFIX)
    written(old, PREFIX, stored)
    (old / "hydra_lm_head.safetensors").unlink()
    # Blocks after the first are one module in the makers' class.
    for name in [name for name in stored if ".5.linear" in name]:
        stored[name] = stored[name.replace(".5.", ".3.")]
    torch.save(stored, old / "hydra_lm_head.pt")
    with pytest.raises(InvalidInput, match=r"hydra_lm_head.pt in .* is a pickle, .* `draftwood convert-head"):
        Hydra(load(target()), folder_of(old))
    assert converted(old, tmp_path / "new") == len(stored)
    head = Hydra(load(target()), tmp_path / "new").head
    assert torch.equal(head.heads[1][2].linear.weight, stored["hydra_mlp.1.3.linear.weight"])


@pytest.mark.parametrize(
    ("change", "more", "sentence"),
    [
        (
            {"hydra_head_arch": "eagle-attn"},
            {},
            "hydra_head_arch is 'eagle-attn' in .*; Hydra heads of the k",
        ),
        ({"grounded_heads": False}, {}, "grounded_heads is False in .*; heads are read where it is True"),
        ({"grounded_heads": None}, {}, "grounded_heads is missing in .*; write true or false there"),
        ({"hydra_num_heads": 4}, {}, "lacks .*hydra_mlp.3.1.linear.bias.* which its description asks"),
        ({"hydra_num_layers": 2}, {}, "has tensors that its description does not mention: hydra_mlp.0.5"),
        (
            {"hidden_state_offset": 9},
            {},
            "hidden_state_offset of the Hydra heads is 9, and their target has 4",
        ),
        ({"hidden_state_offset": "x"}, {}, "hidden_state_offset is 'x'"),
        ({"lm_head_bias": True}, {}, "has the key 'lm_head_bias', which is not known here"),
        ({}, {"token_map": torch.zeros(3)}, "does not mention: token_map"),
        ({}, {"hydra_lm_head.1.1.bias": torch.zeros(VOCAB + 1)}, r"hydra_lm_head.1.1.bias .*\(24,\)"),
        ({}, {"hydra_lm_head.1.1.bias": torch.zeros(VOCAB).int()}, "hydra_lm_head.1.1.bias .* int32"),
    ],
    ids=str,
)
def test_heads_that_are_refused(change: dict[str, Any], more: Tensors, sentence: str, tmp_path: Path) -> None:
    folder = written(tmp_path, {**PREFIX, **change}, {**tensors(PREFIX), **more})
    assert Hydra.reads(folder)
    with pytest.raises((InvalidInput, UnsupportedModel), match=sentence) as error:
        Hydra(load(target()), folder)
    assert "\n" not in str(error.value)
