"""The budget controller, and the pass times that it goes by."""

import time
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import (
    CounterRandomness,
    InvalidInput,
    Outcome,
    SamplingParams,
    SpeculativeDecoder,
    create,
    load,
    zoo,
)
from draftwood.decoding.pass_time import PassTime
from draftwood.strategies.policies.cost_aware import CostAware
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import ToyBackend, ToyModel, assert_lossless
from draftwood.trees.growth import by_distributions

COEFFICIENTS = st.floats(0, 1).map(lambda x: round(x, 6))


def drafter(**options):
    return create("drafters", "model", {"backend": ToyBackend(ToyModel(3, **options))})


def sizes_in(policy, rounds=200, near=None):
    """Drafted nodes, round by round, of a text under `policy`."""
    target = ToyModel(3, seed=1, sharpness=2.0)
    draft = ToyModel(3, seed=2, near=target if near is not None else None, mix=near or 0.0, sharpness=2.0)
    drafts = create("drafters", "model", {"backend": ToyBackend(draft)})
    decoder = SpeculativeDecoder(ToyBackend(target), drafts, policy, RecursiveRejection())
    stream = decoder.stream([[0, 1]], max_new_tokens=10**4, sampling=SamplingParams(temperature=1.0), seed=3)
    return [next(stream).rows[0].outcome.drafted for _ in range(rounds)]


@pytest.mark.parametrize("inner", [LayeredDySpec(1), FixedTree(2, 2, 1), FixedTree(1, 2, 1, law="top-k")])
def test_learning_over_several_rounds_loses_nothing(inner):
    policy = CostAware(inner, budgets=(0, 1, 2), memory=0.7)
    target = ToyModel(3, seed=1, sharpness=2.0)
    assert_lossless(policy, RecursiveRejection(), target=target, drafter=drafter(seed=2), tokens=3)


def test_the_largest_tree_where_passes_cost_the_same():
    policy = CostAware(budgets=(0, 2, 8), target_time=(1.0,), draft_time=(0.0,))
    assert sizes_in(policy, near=0.9)[100:].count(8) > 80


def test_no_tree_where_every_token_costs_a_pass():
    policy = CostAware(budgets=(0, 2, 8), target_time=(0.0, 1.0), draft_time=(0.5,))
    assert sizes_in(policy)[100:].count(0) > 80


def test_no_tree_where_its_draft_calls_cost_more_than_it_brings():
    policy = CostAware(budgets=(0, 2, 8), target_time=(1.0,), draft_time=(0.0, 5.0))
    assert sizes_in(policy, near=0.9)[100:].count(0) > 80


def test_a_tree_in_the_middle_where_its_price_rises_steeply():
    policy = CostAware(budgets=(0, 2, 8), target_time=(1.0, 0.0, 0.05), draft_time=(0.0,))
    assert sizes_in(policy, near=0.9)[100:].count(2) > 80


def test_large_batches_go_back_to_ordinary_decoding():
    """Each row's share of the fixed cost falls with their number, the cost of a node does not."""
    shares = {}
    for rows in (1, 16, 64):
        policy = CostAware(budgets=(0, 2, 8), target_time=(1.0, 0.1), draft_time=(0.05, 0.005), rows=rows)
        sizes = sizes_in(policy, near=0.6)[100:]
        shares[rows] = [sizes.count(budget) / len(sizes) for budget in (0, 2, 8)]
    large, middle, none = (share[index] for share, index in zip(shares.values(), (2, 1, 0), strict=True))
    assert large > 0.7
    assert middle > 0.8
    assert none > 0.7


def test_the_past_fades():
    policy = CostAware(
        FixedTree(1, 1, 1), budgets=(0, 1), target_time=(1.0, 1.0), draft_time=(0.0,), memory=0.95
    )

    state = policy.first_state()

    def play(accepted):
        nonlocal state
        rng = CounterRandomness.seeded(0)
        growing = by_distributions(policy.grow(0, rng, state), rng)
        try:
            next(growing)
            while True:
                growing.send(torch.tensor([[0.5, 0.5]]))
        except StopIteration as finished:
            tree = finished.value
        path = (0, 1) if accepted and len(tree) > 1 else (0,)
        state = policy.observe(state, Outcome.of(tree, path, extra=0, bonus=False), tree)
        return len(tree) - 1

    def share(accepted):
        return sum([play(accepted) for _ in range(200)][100:]) / 100  # once it has settled

    # A round with the node takes 3 for up to 2 tokens, one without it 2 for 1.
    assert share(True) > 0.8
    assert share(False) < 0.5
    assert share(True) > 0.8


@given(st.tuples(COEFFICIENTS, COEFFICIENTS, COEFFICIENTS).filter(lambda c: sum(c) > 0.01))
def test_fit_finds_the_coefficients(coefficients):
    expected = PassTime(*coefficients)
    sizes = (1, 2, 4, 8, 16, 32, 64)
    result = PassTime.fit(sizes, [expected(size) for size in sizes])
    for size in (1, 5, 50, 64):
        assert result(size) == pytest.approx(expected(size), rel=1e-6)


@given(st.lists(st.floats(0.1, 10), min_size=3, max_size=8))
def test_fit_never_gives_a_negative_time(seconds):
    result = PassTime.fit(range(1, len(seconds) + 1), seconds)
    assert min(result.constant, result.linear, result.quadratic) >= 0


def test_measured_on_a_real_model(monkeypatch):
    # Of the processor, so that other programs on the machine do not count.
    monkeypatch.setattr("draftwood.decoding.pass_time.perf_counter", time.thread_time)
    backend = load(zoo.path("llama-draft"))
    result = PassTime.measured(backend, sizes=(1, 16, 256), context=16, repetitions=3)
    assert result(256) > result(1) > 0
    assert backend.lengths == []
    backend.prefill([torch.tensor([1])])
    with pytest.raises(InvalidInput, match="is decoding"):
        PassTime.measured(backend)


def test_a_real_pair_by_its_own_pass_times():
    target, draft = load(zoo.path("llama-7m")), load(zoo.path("llama-draft"))
    times: dict[str, Any] = {"sizes": (1, 8, 32), "context": 16, "repetitions": 2}
    policy = CostAware(
        LayeredDySpec(1, law="top-k"),
        budgets=(0, 4, 16),
        target_time=PassTime.measured(target, **times),
        draft_time=PassTime.measured(draft, **times),
    )
    decoder = SpeculativeDecoder(target, create("drafters", "model", {"backend": draft}), policy, Greedy())
    ids = torch.tensor([[5, 6, 7, 8]])
    expected = target.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False
    )
    result: Any = decoder.generate(ids, max_new_tokens=24)
    assert result.tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"budgets": ()}, "one or more"),
        ({"budgets": "8,4"}, "each above the last"),
        ({"budgets": (-1, 4)}, ">= 0"),
        ({"budgets": "4,x"}, "'4,x'"),
        ({"rows": 0}, "rows is 0"),
        ({"target_time": "1,a"}, "'1,a'"),
        ({"target_time": (1, 2, 3, 4)}, "(1, 2, 3, 4)"),
        ({"draft_time": (-1.0,)}, "constant is -1.0"),
        ({"policy": "chain"}, "Chain has no budget"),
        ({"policy": DynaTree()}, "learns by itself"),
        ({"memory": 1.5}, "memory is 1.5"),
    ],
)
def test_bad_options(options, part):
    with pytest.raises(InvalidInput) as raised:
        CostAware(**options)
    assert part in str(raised.value)


def test_fit_refuses_too_little():
    with pytest.raises(InvalidInput, match="3 sizes"):
        PassTime.fit((1, 1, 2), (1.0, 1.0, 2.0))
    with pytest.raises(InvalidInput, match="above 0"):
        PassTime.fit((1, 2, 3), (1.0, 0.0, 2.0))
