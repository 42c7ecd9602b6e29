"""`FollowedCosts`: costs that follow what rounds take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import (
    FollowedCosts,
    InvalidInput,
    Outcome,
    PassCosts,
    PassTable,
    Round,
    RowRecord,
    SamplingParams,
    SpeculativeDecoder,
)
from draftwood.drafters import ModelDrafter
from draftwood.policies import ThroughputDySpec
from draftwood.testing.models.proof_models import proof_models
from draftwood.testing.models.toy import ToyBackend
from draftwood.verifiers import Greedy, RecursiveRejection

SIZES = (1, 2, 5, 9)
COSTS = PassCosts(
    PassTable.of(lambda nodes, rows, _: 1 + 0.1 * nodes * rows, nodes=SIZES, rows=(1, 4)),
    PassTable.of(lambda nodes, rows, _: 0.2 + 0.01 * nodes, nodes=SIZES, rows=(1, 4)),
    PassTable.of(lambda nodes, rows, _: 0.1 + 0.02 * nodes, nodes=SIZES, rows=(1, 4)),
)
TOYS = proof_models(31, vocab_size=12, target=3.0, draft=2.0, mix=0.8)


def round_of(nodes: int, *, calls: int, target: float, others: float, rows: int = 4) -> Round:
    outcome = Outcome([0], [1], extra=2, bonus=False, drafted=nodes - 1)
    records = tuple(RowRecord(row, (2,), outcome, calls) for row in range(rows))
    return Round(records, calls, target + others, 0.0, target, 0.0)


def observed(
    costs: FollowedCosts,
    sizes: Sequence[int],
    factor: Callable[[int], float],
    others: Sequence[float] = (1.0, 1.0, 1.0),
    *,
    turns: int = 120,
) -> FollowedCosts:
    """Costs that have seen rounds of these sizes, whose parts take so many times as long as measured."""
    ordinary, with_tree, layer = others
    for turn in range(turns):
        nodes = sizes[turn % len(sizes)]
        calls = min(nodes - 1, 2)
        layers = calls * COSTS.draft_seconds(max((nodes - 1) // max(calls, 1), 1), rows=4)
        if calls:
            layers += COSTS.draft_seconds(1, rows=4) - layers / calls
        rest = COSTS.rest_seconds(nodes, rows=4)
        spent = rest * (with_tree if nodes > 1 else ordinary) + layers * layer
        target = COSTS.target(nodes, rows=4) * factor(nodes)
        costs.observe(round_of(nodes, calls=calls, target=target, others=spent))
    return costs


@settings(max_examples=40, deadline=None)
@given(
    factors=st.tuples(*[st.floats(0.6, 1.8)] * 3),
    others=st.tuples(*[st.floats(0.6, 1.8)] * 3),
)
def test_sizes_that_are_seen_come_to_cost_what_they_take(factors, others) -> None:
    of_size = dict(zip((1, 2, 5), factors, strict=True))
    now = observed(FollowedCosts(COSTS), (1, 2, 5), of_size.__getitem__, others).now
    for nodes, factor in of_size.items():
        assert now.target(nodes, rows=4) == pytest.approx(factor * COSTS.target(nodes, rows=4), rel=0.15)
    ordinary, with_tree, layer = others
    assert now.rest_seconds(1, rows=4) == pytest.approx(ordinary * COSTS.rest_seconds(1, rows=4), rel=0.15)
    # Which of them a round's time belongs to is told less surely than their sum.
    for nodes, calls in ((2, 1), (5, 2)):
        wide = (nodes - 1) // calls
        parts = [(COSTS, with_tree, layer), (now, 1.0, 1.0)]
        meant, found = (
            rest * costs.rest_seconds(nodes, rows=4)
            + call * (costs.draft_seconds(1, rows=4) + (calls - 1) * costs.draft_seconds(wide, rows=4))
            for costs, rest, call in parts
        )
        assert found == pytest.approx(meant, rel=0.15)


def test_a_size_that_was_not_seen_changes_with_the_rest() -> None:
    now = observed(FollowedCosts(COSTS), (1, 5), lambda _: 1.5).now
    assert now.target(9, rows=4) == pytest.approx(1.5 * COSTS.target(9, rows=4), rel=0.15)


def test_one_round_that_waited_for_another_program_changes_little() -> None:
    costs = observed(FollowedCosts(COSTS), (1, 5), lambda _: 1.0)
    costs.observe(round_of(5, calls=2, target=200.0, others=100.0))
    now = observed(costs, (1, 5), lambda _: 1.0, turns=16).now
    for nodes in SIZES:
        assert now.target(nodes, rows=4) == pytest.approx(COSTS.target(nodes, rows=4), rel=0.05)


def test_nodes_that_are_cut_at_the_end_of_a_text_are_no_ordinary_round() -> None:
    costs = FollowedCosts(COSTS)
    layer, rest = COSTS.draft_seconds(1, rows=4), COSTS.rest_seconds(1, rows=4)
    for _ in range(64):
        costs.observe(round_of(1, calls=1, target=COSTS.target(1, rows=4), others=layer + rest))
    assert costs.now is COSTS


def test_passes_that_cost_nothing_stay_so() -> None:
    free = PassCosts(PassTable.of(lambda *_: 0.0, nodes=SIZES))
    costs = FollowedCosts(free)
    for _ in range(64):
        costs.observe(round_of(2, calls=1, target=1.0, others=1.0))
    assert costs.now is free


def test_prompts_are_left_out() -> None:
    costs = FollowedCosts(COSTS)
    for _ in range(64):
        one = round_of(1, calls=0, target=100.0, others=1.0)
        costs.observe(Round(one.rows, 0, 101.0, 0.0, 100.0, 0.0, prefill=True))
    assert costs.now is COSTS


def test_the_greedy_text_is_the_same_and_the_policy_sees_what_rounds_take() -> None:
    texts = list[Any]()
    for costs in (COSTS, FollowedCosts(COSTS)):
        decoder = SpeculativeDecoder(
            ToyBackend(TOYS.target),
            ModelDrafter(ToyBackend(TOYS.draft)),
            ThroughputDySpec(8, law="top-k"),
            Greedy(),
            pass_costs=costs,
        )
        given = torch.tensor([[1, 2], [3, 1]])
        texts.append(
            decoder.generate(given, sampling=SamplingParams(temperature=0.0), max_new_tokens=64, seed=1)
        )
    assert torch.equal(*texts)
    assert isinstance(costs, FollowedCosts)
    # A toy's pass takes far less than the 1.4 that were said to be measured.
    assert costs.now.target(1, rows=2) < 0.8 * COSTS.target(1, rows=2)


def test_ranks_have_several_clocks() -> None:
    target = ToyBackend(TOYS.target)
    target.ranks = cast("Any", object())
    with pytest.raises(InvalidInput, match="ranks, whose clocks differ; give PassCosts"):
        SpeculativeDecoder(
            target,
            ModelDrafter(ToyBackend(TOYS.draft)),
            ThroughputDySpec(8),
            RecursiveRejection(),
            pass_costs=FollowedCosts(COSTS),
        )
