"""Block drafters: their marginals equal a forward from scratch, and their files say all that they need."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import attrs
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import (
    IncompatibleModels,
    InvalidInput,
    Outcome,
    Request,
    SamplingParams,
    SpeculativeDecoder,
    UnsupportedModel,
    load,
)
from draftwood.strategies.blocks.files import save_block
from draftwood.strategies.drafters.block_drafter import BlockDrafter
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import DrafterWithTarget, ToyBackend, ToyModel, assert_lossless, checks_for
from tests.strategies.beside_target import many_rounds
from tests.strategies.block_heads import (
    KINDS,
    MODEL,
    VOCAB,
    beside_llama,
    config,
    depth_logits,
    random_head,
)
from tests.strategies.feature_heads import feature_toy
from tests.thorough import marks_unless


@pytest.mark.parametrize("kind", KINDS)
def test_marginals_are_those_of_a_forward_from_scratch_after_many_rounds(kind):
    head = random_head(KINDS[kind])
    beside = beside_llama(head)
    text = [[3, 1, 4], [7], [2, 2, 9, 8, 1, 6]]
    beside.prefill([torch.tensor(row) for row in text])
    for step in range(2):
        paths = [[(5 * row + step + depth * 3) % VOCAB for depth in range(5)] for row in range(3)]
        requests = [Request(torch.tensor(path), torch.arange(-1, 4)) for path in paths]
        got = beside.distributions(requests)
        for row, path in enumerate(paths):
            for depth in (0, 2, 3, 4):
                expected = depth_logits(head, text[row], path[: depth + 1])
                assert torch.allclose(got[row, depth], expected, rtol=0, atol=1e-5)
        taken = [paths[0][:3], paths[1][:1], paths[2][:2]]
        beside.commit([Outcome(range(len(t)), t, extra=0, bonus=True, drafted=4) for t in taken])
        text = [row + path for row, path in zip(text, taken, strict=True)]


@pytest.mark.parametrize("kind", [pytest.param("dflash", marks=pytest.mark.thorough), "dspark"])
@pytest.mark.parametrize("name", [name for name, _ in checks_for(beside_llama(random_head(config())))])
def test_every_check_of_a_drafter(kind, name):
    dict(checks_for(beside_llama(random_head(KINDS[kind]))))[name]()


LAW = ToyModel(3, seed=5)
PAIRS = [
    (Chain(2), RecursiveRejection()),
    (FixedTree(2, 2, 4), Traversal()),
    (DySpec(3), RecursiveRejection()),
    (FixedTree(3, 1, law="with-replacement"), RecursiveRejection()),
]


@pytest.mark.parametrize(
    ("policy", "verifier", "kind", "confidence"),
    [
        pytest.param(policy, verifier, kind, confidence, marks=marks_unless(place == shown))
        for kinds, confidence in (((("dflash", "map", "rnn", "dspark")), 0.0), (("rnn", "dspark"), 0.6))
        for shown, kind in enumerate(kinds)
        for place, (policy, verifier) in enumerate(PAIRS)
    ],
)
def test_the_targets_law_comes_out_whatever_the_weights(policy, verifier, kind, confidence):
    some: dict[str, Any] = {"draft_vocab_size": 2, "taps": (0, 3)} if kind == "map" else {}
    toy: dict[str, Any] = {"vocab_size": 3, "own_head": True, "mask_token_id": 1, "target_layers": 4}
    made = attrs.evolve(KINDS[kind], **toy, **some)
    backend = feature_toy(LAW)
    drafter = DrafterWithTarget(backend, BlockDrafter(backend, random_head(made), confidence=confidence))
    law = assert_lossless(policy, verifier, target=LAW, drafter=drafter, prompt=(0, 1))
    assert law.expected_tokens > 1


@settings(max_examples=10, deadline=None)
@given(st.data())
def test_after_many_rounds_the_cache_is_that_of_a_fresh_prefill(data):
    """Also where rows join and leave, ask for nothing, and take tokens that nobody asked about."""
    head = random_head(KINDS["rnn"])
    drafter, fresh = beside_llama(head), beside_llama(head)
    texts = many_rounds(data, drafter)
    fresh.prefill([torch.tensor(text, dtype=torch.int64) for text in texts])
    mine, others = (cast(BlockDrafter, one.drafter)._contexts for one in (drafter, fresh))
    assert mine.lengths.tolist() == others.lengths.tolist()
    for (keys, values), (wanted, more) in zip(mine.known, others.known, strict=True):
        torch.testing.assert_close(keys, wanted, atol=1e-9, rtol=0)
        torch.testing.assert_close(values, more, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("kind", "confidence"),
    [("gated", 0.0), ("rnn", 0.0), ("rnn behind the root", 0.0), ("dspark", 0.5), ("rnn", 0.5)],
)
def test_a_tree_of_several_requests_is_its_paths_from_scratch(kind, confidence):
    """Rows ask for different numbers of nodes, and a row leaves in between."""
    head = random_head(KINDS[kind])
    beside, unsure = beside_llama(head, confidence=confidence), []
    texts = [[5, 5], [3, 1, 4], [7]]
    beside.prefill([torch.tensor(row) for row in texts])
    parents, tokens = [-1, 0, 0, 1, 2, 3], [[8, 2, 3, 4, 5, 6], [9, 1, 1, 2, 2, 3], [7, 7, 8, 8, 9, 9]]
    for step, (first, last) in enumerate(((0, 1), (1, 3), (3, 6))):
        if step == 2:
            beside.release([0])
            del texts[0], tokens[0]
        lasts = [last - (step == 1 and row == 1) for row in range(len(texts))]
        got = beside.distributions(
            [
                Request(torch.tensor(row[first:end]), torch.tensor(parents[first:end]))
                for row, end in zip(tokens, lasts, strict=True)
            ]
        )
        if step == 1:  # row 1 asked for one node less
            beside.distributions([None, Request(torch.tensor(tokens[1][2:3]), torch.tensor([0])), None])
        for row, text in enumerate(texts):
            for column, node in enumerate(range(first, lasts[row])):
                path: list[int] = []
                while node >= 0:
                    path.insert(0, tokens[row][node])
                    node = parents[node]
                expected = depth_logits(head, text, path, confidence=confidence)
                torch.testing.assert_close(got[row, column], expected, atol=1e-5, rtol=1e-5)
                unsure.append(bool((expected == -torch.inf).all()))
    assert not all(unsure)
    assert any(unsure) or not confidence


def test_a_head_that_does_not_say_how_confident_it_is_is_refused():
    with pytest.raises(InvalidInput, match="confidence=0.5 needs a head that says how confident it is"):
        BlockDrafter(load(MODEL), random_head(config()), confidence=0.5)


def test_a_sampled_and_a_greedy_text_come_out_with_any_weights():
    prompt = [[3, 1, 4, 1], [5, 9]]
    for temperature in (0.0, 1.0):
        target: Any = load(MODEL)
        drafter = BlockDrafter(target, random_head(KINDS["dspark"]))
        law = "top-k" if temperature == 0 else "without-replacement"
        decoder = SpeculativeDecoder(target, drafter, LayeredDySpec(6, law=law), RecursiveRejection())
        sampling = SamplingParams(temperature=temperature)
        out: Any = decoder.generate(prompt, max_new_tokens=12, sampling=sampling, seed=1, eos_token_id=[])
        assert out.shape == (2, 16)
        if temperature == 0:
            for row, words in zip(out, prompt, strict=True):
                wanted = MODEL.generate(
                    torch.tensor([words]), max_new_tokens=12, do_sample=False, eos_token_id=None
                )
                assert row[-12:].tolist() == wanted[0, len(words) :].tolist()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 8}, "made for states of width 8, but the target's is 16"),
        ({"vocab_size": 24}, "made for a vocabulary of 24, but the target's is 23"),
        ({"target_layers": 6}, "made for a target of 6 layers, and this one has 5"),
    ],
)
def test_a_head_of_another_target_is_refused(changes, message):
    with pytest.raises(IncompatibleModels, match=message):
        BlockDrafter(load(MODEL), random_head(attrs.evolve(config(), **changes)))


def test_a_target_without_features_or_with_other_rows_is_refused():
    with pytest.raises(UnsupportedModel, match="declares no features"):
        BlockDrafter(ToyBackend(ToyModel(VOCAB)), random_head(config()))
    drafter = BlockDrafter(load(MODEL), random_head(config()))
    with pytest.raises(InvalidInput, match="holds 0 row.s., not the 1 that join here"):
        drafter.prefill([torch.tensor([1, 2])])


def test_a_block_size_is_given_where_the_folder_does_not_say_it(tmp_path: Path) -> None:
    target, made = load(MODEL), random_head(config())
    save_block(made, tmp_path)
    file = tmp_path / "config.json"
    told = json.loads(file.read_text(encoding="utf-8"))
    del told["block_size"]
    file.write_text(json.dumps(told), encoding="utf-8")
    with pytest.raises(InvalidInput, match="block_size is None in .*-o block_size=NUMBER"):
        BlockDrafter(target, tmp_path)
    assert BlockDrafter(load(MODEL), tmp_path, block_size=4).head.config == made.config
    with pytest.raises(InvalidInput, match="block_size=5 is not that of the head, 4; leave it out"):
        BlockDrafter(load(MODEL), made, block_size=5)
