"""Sequoia: the best shape, and the acceptance vector that it is best for."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import (
    CounterRandomness,
    InvalidInput,
    Outcome,
    RowRecord,
)
from draftwood.decoding.round_records import TracedTree
from draftwood.strategies.acceptance import acceptance_of_rounds, acceptance_vector
from draftwood.strategies.policies.sequoia import Sequoia, best_shape
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.policies.stochastic_beam import StochasticBeam
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import (
    ToyModel,
    enumerate_outcomes,
)
from tests.strategies.drawn_trees import drawn, grow, places_of, texts_of

seeds = st.integers(0, 10**6)


def all_shapes(budget, depth, width):
    """All sets of at most `budget` places whose elder siblings and parents are there too."""

    def children(place, rank, nodes, levels):
        yield nodes, ()
        if nodes and levels and rank < width:
            child = (*place, rank)
            for left, below in children(child, 0, nodes - 1, levels - 1):
                for rest, younger in children(place, rank + 1, left, levels):
                    yield rest, (child, *below, *younger)

    return {tuple(sorted(shape)) for _, shape in children((), 0, budget, depth)}


def value(shape, acceptance):
    total = 0.0
    for index in shape:
        chance = 1.0
        for rank in index:
            chance *= acceptance[rank]
        total += chance
    return total


@given(
    st.lists(st.one_of(st.just(0.0), st.floats(0, 1)), min_size=1, max_size=3),
    st.integers(1, 6),
    st.integers(1, 4),
)
def test_the_best_shape_beats_every_other(weights, budget, depth):
    acceptance = [weight / max(1.0, sum(weights)) for weight in weights]
    shape = best_shape(acceptance, budget=budget, depth=depth)
    rivals = all_shapes(budget, depth, len(acceptance))
    assert tuple(sorted(shape)) in rivals
    best = max(value(rival, acceptance) for rival in rivals)
    assert value(shape, acceptance) == pytest.approx(best, abs=1e-12)


@given(st.lists(st.floats(0.001, 1), min_size=1, max_size=8), st.integers(1, 80))
def test_a_falling_vector_gives_the_most_likely_places(weights, budget):
    falling = sorted(weights, reverse=True)
    acceptance = [0.95 * weight / sum(falling) for weight in falling]
    shape = best_shape(acceptance, budget=budget, depth=budget)
    inside = set(shape)
    # A place is worth at most its parent and its elder sibling, so taking the best one by one is optimal.
    greedy, border = 0.0, list[tuple[int, ...]]([(0,)])
    for _ in range(budget):
        best = max(border, key=lambda place: value_of(place, acceptance))
        greedy += value_of(best, acceptance)
        border.remove(best)
        border.append((*best, 0))
        if best[-1] + 1 < len(acceptance):
            border.append((*best[:-1], best[-1] + 1))
    assert len(inside) == len(shape) <= budget
    assert value(shape, acceptance) == pytest.approx(greedy, rel=1e-12)


def value_of(place, acceptance):
    chance = 1.0
    for rank in place:
        chance *= acceptance[rank]
    return chance


@given(seeds, st.integers(1, 12), st.integers(1, 4))
def test_sequoia_draws_its_best_shape(seed, budget, depth):
    policy = Sequoia(budget, depth, (0.4, 0.3, 0.1))
    tree = grow(policy, ToyModel(4, seed=seed), seed=seed)
    assert sorted(places_of(tree)) == sorted(policy.shape)
    assert len(tree) - 1 <= budget
    assert tree.depth <= depth


def test_a_vector_may_come_as_words():
    assert Sequoia(4, 2, "0.5, 0.25") == Sequoia(4, 2, [0.5, 0.25])


def test_the_vector_is_that_of_the_verifier():
    target, draft = ToyModel(4, seed=1), ToyModel(4, seed=2)
    expected = [0.0] * 3
    # The verifier's own verdicts on every tree of three siblings, with their chances.
    policy = StaticTree(((0,), (1,), (2,)))
    rows = target.probs((0,)).expand(4, 4).contiguous()
    for weight, tree in drawn(policy, draft):
        judge = partial(RecursiveRejection().verify, tree, rows)
        for chance, outcome in enumerate_outcomes(judge):
            if outcome.accepted:
                expected[outcome.path[1] - 1] += weight * chance
    p, q = target.probs((0,)).unsqueeze(0), draft.probs((0,)).unsqueeze(0)
    result = [0.0] * 3
    for weight, vector in enumerate_outcomes(lambda rng: acceptance_vector(p, q, width=3, rng=rng)):
        result = [a + weight * b for a, b in zip(result, vector, strict=True)]
    assert result == pytest.approx(expected, abs=1e-13)


@given(seeds, st.integers(1, 5))
def test_traced_rounds_count_the_siblings_that_were_judged(seed, width):
    draft, target = ToyModel(4, seed=seed), ToyModel(4, seed=seed + 1)
    records, judged, accepted = [], Counter[Any](), Counter[Any]()
    for number in range(5):
        tree = grow(StochasticBeam(3, 3), draft, seed=seed + number)
        rows = torch.stack([target.probs(text) for text in texts_of(tree)])
        outcome = RecursiveRejection().verify(tree, rows, CounterRandomness.seeded(number))
        traced = TracedTree.of(tree, rows, outcome)
        records.append(RowRecord(0, outcome.emitted, outcome, tree.depth, tree=traced))
        for node in outcome.path:
            for rank, child in enumerate(tree.children(node)):
                judged[rank] += 1
                accepted[rank] += child in outcome.path
    expected = [accepted[rank] / judged[rank] if judged[rank] else 0.0 for rank in range(width)]
    assert acceptance_of_rounds(records, width=width) == expected


def test_calibration_refuses_what_it_cannot_measure():
    rng = CounterRandomness.seeded(0)
    with pytest.raises(InvalidInput, match="width is 0"):
        acceptance_of_rounds([], width=0)
    with pytest.raises(InvalidInput, match=r"target and draft are \[2, 3\] and \[2, 4\]"):
        acceptance_vector(torch.ones(2, 3) / 3, torch.ones(2, 4) / 4, width=2, rng=rng)
    with pytest.raises(InvalidInput, match="at least one position"):
        acceptance_vector(torch.ones(0, 3), torch.ones(0, 3), width=2, rng=rng)
    untraced = RowRecord(0, (1,), Outcome((0,), (0,), extra=1, bonus=True, drafted=0), 0)
    with pytest.raises(InvalidInput, match="trace the rounds"):
        acceptance_of_rounds([untraced], width=2)


def test_more_siblings_than_tokens_count_nothing():
    p = torch.tensor([[0.5, 0.5, 0.0]], dtype=torch.float64)
    vector = acceptance_vector(p, p, width=4, rng=CounterRandomness.seeded(0))
    assert vector == [1, 0, 0, 0]
