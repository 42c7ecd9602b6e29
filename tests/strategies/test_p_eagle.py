"""P-EAGLE heads: marginals, commits and files, and the target's law."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch.nn.functional import silu

from draftwood import IncompatibleModels, InvalidInput, Outcome, Request, UnsupportedModel, load
from draftwood.strategies.drafters.p_eagle import PEagle
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.formats import is_head
from draftwood.strategies.heads.peagle import (
    PEagleConfig,
    PEagleHead,
    is_peagle,
    load_peagle,
    save_peagle,
)
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import DrafterWithTarget, ToyBackend, ToyModel, assert_lossless, check_strategy
from tests.strategies.beside_target import many_rounds
from tests.strategies.block_heads import normed
from tests.strategies.feature_heads import config, feature_toy, target
from tests.thorough import marks_unless

KINDS: dict[str, PEagleConfig] = {
    "plain": PEagleConfig(head=config(), mask_token_id=5, depths=4),
    "layers": PEagleConfig(
        head=config(fc_norm=True, query_key_norm=True, norm_before_residual=True, taps=(0, 3), layers=3),
        depths=3,
    ),
    "table": PEagleConfig(
        head=config(own_embedding=True, draft_vocab_size=23, norm_before_fc=True, layers=2), depths=2
    ),
}


def random_head(made: PEagleConfig, *, seed: int = 0) -> PEagleHead:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(made.head.vocab_size, generator=generator)[: made.head.draft_vocab_size].sort()
    head = PEagleHead(made, target_ids=ids.values).double()
    with torch.no_grad():
        for weight in head.parameters():
            weight.normal_(generator=generator).mul_(0.5)
            if weight.dim() == 1:
                weight.add_(1)
    return head.eval()


def beside_llama(head: PEagleHead) -> DrafterWithTarget:
    backend = load(target())
    return DrafterWithTarget(backend, PEagle(backend, head))


@torch.no_grad()
def depth_logits(head: PEagleHead, text: list[int], path: list[int]) -> Any:
    """Returns logits `[vocab]` of the last node of `path` after `text`, by an independent forward."""
    made, parts = head.config.head, head.head
    logits = torch.full((made.vocab_size,), -torch.inf, dtype=torch.float64)
    if not text or len(path) > head.config.depths:
        return logits
    assert made.taps is not None
    hidden = target()(torch.tensor([text]), output_hidden_states=True).hidden_states
    features = torch.cat([hidden[tap][0] for tap in made.taps], -1)
    masks = len(path) - 1
    features = torch.cat([features, head.mask_hidden.view(1, -1).expand(masks, -1)])
    if parts.input_norm is not None:
        features = norm(parts.input_norm, features)
    if parts.fc_norm is not None:
        pieces = features.split(made.target_hidden_size, -1)
        features = torch.cat([norm(one, piece) for one, piece in zip(parts.fc_norm, pieces, strict=True)], -1)
    states = features @ parts.fc.weight.T
    table = target().get_input_embeddings() if parts.embed_tokens is None else parts.embed_tokens
    tokens = [*text[1:], path[0], *[head.config.mask_token_id] * masks]
    first: Any = parts.midlayer
    gone = norm(first.hidden_norm, states)
    both = torch.cat([norm(first.input_layernorm, table.weight[torch.tensor(tokens)]), gone], -1)
    residual = gone if made.norm_before_residual else states
    out = behind(first, residual + attended(first.self_attn, both, made))
    for layer in parts.more:
        plain: Any = layer
        out = behind(plain, out + attended(plain.self_attn, norm(plain.input_layernorm, out), made))
    assert parts.lm_head is not None
    logits[parts.target_ids] = parts.lm_head.weight @ norm(parts.norm, out[-1])
    return logits


def norm(module: Any, states: Any) -> Any:
    return normed(module.weight, states)


def behind(layer: Any, states: Any) -> Any:
    inner = norm(layer.post_attention_layernorm, states)
    gated = silu(inner @ layer.mlp.gate_proj.weight.T) * (inner @ layer.mlp.up_proj.weight.T)
    return states + gated @ layer.mlp.down_proj.weight.T


def attended(attention: Any, states: Any, made: Eagle3Config) -> Any:
    """Every place sees those up to it."""
    dim, group = made.head_dim, made.attention_heads // made.key_value_heads
    angles = [10000.0 ** (-2 * k / dim) for k in range(dim // 2)]

    def turned(vector: Any, place: int) -> Any:
        result = vector.clone()
        for k, angle in enumerate(angles):
            cos, sin = math.cos(place * angle), math.sin(place * angle)
            result[k] = vector[k] * cos - vector[dim // 2 + k] * sin
            result[dim // 2 + k] = vector[dim // 2 + k] * cos + vector[k] * sin
        return result

    queries, keys, values = (
        (states @ projection.weight.T).unflatten(-1, (-1, dim))
        for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    if attention.q_norm is not None:
        queries, keys = norm(attention.q_norm, queries), norm(attention.k_norm, keys)
    out = []
    for place in range(len(states)):
        heads = []
        for which in range(made.attention_heads):
            shared = which // group
            query = turned(queries[place, which], place)
            scores = [turned(keys[seen, shared], seen) @ query / dim**0.5 for seen in range(place + 1)]
            heads.append(torch.stack(scores).softmax(0) @ values[: place + 1, shared])
        out.append(attention.o_proj.weight @ torch.cat(heads))
    return torch.stack(out)


@pytest.mark.parametrize("kind", KINDS)
def test_marginals_are_those_of_a_forward_from_scratch_after_many_rounds(kind: str) -> None:
    head = random_head(KINDS[kind])
    beside = beside_llama(head)
    texts: list[list[int]] = [[3, 1, 4], [7], [2, 2, 9, 8, 1, 6], []]
    beside.prefill([torch.tensor(text, dtype=torch.int64) for text in texts])
    for step in range(2):
        paths = [[(5 * row + step + depth * 3) % 23 for depth in range(5)] for row in range(4)]
        got = beside.distributions([Request(torch.tensor(path), torch.arange(-1, 4)) for path in paths])
        for row, path in enumerate(paths):
            for depth in range(5):
                expected = depth_logits(head, texts[row], path[: depth + 1])
                torch.testing.assert_close(got[row, depth], expected, atol=1e-5, rtol=1e-5)
        taken = [paths[0][:3], paths[1][:1], [], paths[3][:2]]
        beside.commit([Outcome(range(len(t)), t, extra=0, bonus=True, drafted=4) for t in taken])
        texts = [text + path for text, path in zip(texts, taken, strict=True)]


@pytest.mark.parametrize("kind", [pytest.param("plain", marks=pytest.mark.thorough), "layers"])
def test_it_keeps_what_every_drafter_must(kind: str) -> None:
    check_strategy(beside_llama(random_head(KINDS[kind])))


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_after_many_rounds_the_cache_is_that_of_a_fresh_prefill(data: Any) -> None:
    head = random_head(KINDS["layers"])
    drafter, fresh = beside_llama(head), beside_llama(head)
    texts = many_rounds(data, drafter)
    fresh.prefill([torch.tensor(text, dtype=torch.int64) for text in texts])
    ours: Any = drafter.drafter
    theirs: Any = fresh.drafter
    for text, known, wanted in zip(texts, ours._known, theirs._known, strict=True):
        assert sum(len(layer[0]) for layer in known) == 3 * max(len(text) - 1, 0)
        for layer, other in zip(known, wanted, strict=True):
            for held, expected in zip(layer, other, strict=True):
                torch.testing.assert_close(held, expected, atol=1e-9, rtol=0)
    for held, expected in zip(ours._last, theirs._last, strict=True):
        assert (held is None) == (expected is None)
        if held is not None:
            torch.testing.assert_close(held, expected, atol=1e-9, rtol=0)


LAW = ToyModel(3, seed=5)
PAIRS = [
    (Chain(2), RecursiveRejection()),
    (FixedTree(2, 2, 4), Traversal()),
    (DySpec(3), RecursiveRejection()),
    (FixedTree(3, 1, law="with-replacement"), RecursiveRejection()),
]


@pytest.mark.parametrize(
    ("policy", "verifier", "layers"),
    [
        pytest.param(policy, verifier, layers, marks=marks_unless(place == layers - 1))
        for place, (policy, verifier) in enumerate(PAIRS)
        for layers in (1, 2)
    ],
)
def test_the_targets_law_comes_out_whatever_the_weights(policy: Any, verifier: Any, layers: int) -> None:
    head = config(vocab_size=3, draft_vocab_size=4 - layers, layers=layers)
    made = PEagleConfig(head=head, mask_token_id=1, depths=2)
    backend = feature_toy(LAW)
    drafter = DrafterWithTarget(backend, PEagle(backend, random_head(made)))
    law = assert_lossless(policy, verifier, target=LAW, drafter=drafter, prompt=(0, 1))
    assert law.expected_tokens > 1


def test_targets_and_options_that_do_not_fit() -> None:
    with pytest.raises(UnsupportedModel, match="declares no features .*which the head reads"):
        PEagle(ToyBackend(LAW), random_head(KINDS["plain"]))
    wide = attrs.evolve(KINDS["plain"], head=config(vocab_size=24))
    with pytest.raises(IncompatibleModels, match="made for a vocabulary of 24, but the target's is 23"):
        PEagle(load(target()), random_head(wide))
    with pytest.raises(InvalidInput, match="depths is 0; a pass guesses 1 or more"):
        PEagle(load(target()), random_head(KINDS["plain"]), depths=0)
    deep = PEagle(load(target()), random_head(KINDS["plain"]), depths=6)
    beside = DrafterWithTarget(deep.target, deep)
    beside.prefill([torch.tensor([1, 2, 3])])
    got = beside.distributions([Request(torch.arange(7), torch.arange(-1, 6))])
    assert got.isfinite().any(-1).tolist() == [[True] * 6 + [False]]


# --- files ---


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_is_read(kind: str, tmp_path: Path) -> None:
    head = random_head(KINDS[kind]).bfloat16()
    save_peagle(head, tmp_path, target="big")
    again = load_peagle(tmp_path)
    assert again.config == head.config
    assert torch.equal(again.head.target_ids, head.head.target_ids)
    for name, weight in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], weight)
    assert is_peagle(tmp_path)
    assert not is_head(tmp_path)
    names = load_file(tmp_path / "model.safetensors").keys()
    assert {"layers.0.hidden_norm.weight", "mask_hidden", "fc.weight"} <= names
    assert ("layers.1.self_attn.q_proj.weight" in names) == (head.config.head.layers > 1)


Edit = Callable[[dict[str, Any]], Any]


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (lambda d: d.update(mask_token_id=None), "mask_token_id is None"),
        (lambda d: d.update(mask_token_id=23), "mask_token_id is 23, and its target has 23 tokens"),
        (lambda d: d.update(rollouts=2), "the key 'rollouts', which is not known here"),
        (lambda d: d.update(transformer_layer_config=7), "transformer_layer_config is 7"),
        (lambda d: d["transformer_layer_config"].update(num_hidden_layers=0), "num_hidden_layers is 0"),
        (
            lambda d: d["transformer_layer_config"].update(num_hidden_layers=3),
            "num_hidden_layers is 3 in .* of 1 layer",
        ),
        (
            lambda d: d["transformer_layer_config"].update(layer_types=["sliding_attention"]),
            "attends in a window",
        ),
        (
            lambda d: d["speculators_config"].update(proposal_methods=[{"speculative_tokens": -1}]),
            "speculative_tokens is -1",
        ),
        (lambda d: d.update(draft_vocab_size=18), r"d2t .* of the shape \(19,\); a head of 18"),
        (lambda d: d.update(speculators_model_type="eagle3"), "describes a 'eagle3' head; 'peagle'"),
    ],
)
def test_a_description_that_is_refused(edit: Edit, sentence: str, tmp_path: Path) -> None:
    save_peagle(random_head(KINDS["plain"]), tmp_path, target="big")
    described = json.loads((tmp_path / "config.json").read_text())
    edit(described)
    (tmp_path / "config.json").write_text(json.dumps(described))
    with pytest.raises(InvalidInput, match=sentence) as error:
        load_peagle(tmp_path)
    assert "\n" not in str(error.value)


def test_tensors_that_are_refused_and_depths_that_are_not_told(tmp_path: Path) -> None:
    save_peagle(random_head(KINDS["plain"]), tmp_path, target="big")
    file = tmp_path / "model.safetensors"
    stored = load_file(file)
    mask = stored.pop("mask_hidden")
    save_file(stored, file)
    with pytest.raises(InvalidInput, match="lacks mask_hidden, which its description asks for"):
        load_peagle(tmp_path)
    save_file({**stored, "mask_hidden": mask[0].clone()}, file)
    with pytest.raises(InvalidInput, match=r"mask_hidden .* has the shape \(1, 48\), .* \(1, 1, 48\)"):
        load_peagle(tmp_path)
    save_file({**stored, "mask_hidden": mask}, file)
    described = json.loads((tmp_path / "config.json").read_text())
    del described["speculators_config"]
    (tmp_path / "config.json").write_text(json.dumps(described))
    assert load_peagle(tmp_path).config.depths == 8
    assert not is_peagle(tmp_path / "nowhere")


def test_other_taps_than_those_of_the_file_are_read(tmp_path: Path) -> None:
    head = random_head(KINDS["plain"])
    save_peagle(head, tmp_path, target="big")
    named = PEagle(load(target()), tmp_path, taps="3,1,2")
    assert named.taps == (1, 2, 3)
    assert named.head.head.config.taps == (1, 2, 3)
    for source in (tmp_path, head):
        with pytest.raises(InvalidInput, match="taps names 2 layers, but the head .*reads 3; give that many"):
            PEagle(load(target()), source, taps="1,2")
