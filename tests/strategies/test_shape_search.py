"""The shape that a search finds is the best of all shapes, by the shares that were measured."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import CounterRandomness, InvalidInput, SamplingParams, WithoutReplacement
from draftwood.strategies import shape_search
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.path_chances import path_chances
from draftwood.strategies.policies.shapes import as_shape
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.shape_search import (
    FEW,
    SiblingShares,
    best_sorted_shape,
    measured_shares,
    sibling_ranks,
)
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.testing import ToyBackend, ToyModel
from tests.strategies.drawn_trees import grow, texts_of


def judged(shape, *, vocab, seed):
    """A drawn tree of `shape` and its chances."""
    tree = grow(StaticTree(shape, sort=True), ToyModel(vocab, seed=seed), seed=seed)
    target = ToyModel(vocab, seed=seed + 50)
    probs = torch.stack([target.probs(text) for text in texts_of(tree)])
    return tree, path_chances(RaceTraversal(), tree, probs, CounterRandomness.seeded(seed)).tolist()


def measured(seed, shapes):
    shares = SiblingShares()
    for number, shape in enumerate(shapes):
        shares.add(*judged(shape, vocab=9, seed=seed + number))
    return shares


def value(shape, shares):
    """Tokens a round of a shape, node by node."""
    chances = {(): 1.0}
    for path in shape:
        above = path[:-1]
        siblings = sum(other[:-1] == above for other in shape)
        table = shares.table(len(above), above[-1] if above else 0)
        chances[path] = chances[above] * table[siblings - 1, path[-1]]
    return sum(chances.values())


def by_level(paths: Any) -> tuple[tuple[int, ...], ...]:
    return tuple(sorted(paths, key=lambda path: (len(path), path)))


def every_shape(nodes, depth, widest):
    """All shapes of so many nodes, siblings without gaps."""
    shapes: set[tuple[tuple[int, ...], ...]] = {()}
    for _ in range(nodes):
        grown = set[tuple[tuple[int, ...], ...]]()
        for shape in shapes:
            for parent in ((), *shape):
                siblings = sum(path[:-1] == parent for path in shape)
                if len(parent) < depth and siblings < widest:
                    grown.add(by_level((*shape, (*parent, siblings))))
        shapes = grown
    return shapes


WIDE = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
DEEP = ((0,), (1,), (0, 0), (1, 0), (0, 0, 0), (0, 0, 1), (0, 0, 2))


@settings(max_examples=10)
@given(seed=st.integers(0, 10**6), budget=st.integers(1, 6), depth=st.integers(1, 4))
def test_no_shape_is_worth_more(seed, budget, depth):
    shares = measured(seed, [WIDE, DEEP, WIDE])
    best, expected = best_sorted_shape(shares, budget=budget, depth=depth)
    assert expected == pytest.approx(value(best, shares), abs=1e-12)
    assert as_shape(best) == best
    assert len(best) <= budget
    others = itertools.chain.from_iterable(every_shape(nodes, depth, 3) for nodes in range(1, budget + 1))
    assert expected == pytest.approx(max(value(shape, shares) for shape in others), abs=1e-12)


def test_shares_are_what_children_receive_of_their_parents():
    tree, chances = judged(WIDE, vocab=9, seed=3)
    shares = SiblingShares()
    shares.add(tree, chances)
    ranks = sibling_ranks(tree)
    children = sorted(tree.children(0), key=lambda child: ranks[child])
    assert shares.table(0, 0)[2] == pytest.approx([chances[child] for child in children])
    # Between no sibling and three there is nothing; what lies between is on a line.
    assert shares.table(0, 0)[0] == pytest.approx(shares.table(0, 0)[2] / 3)


def test_ranks_are_those_of_sorted_trees():
    tree = grow(StaticTree(WIDE, sort=True), ToyModel(9, seed=4), seed=4)
    assert all(isinstance(law, WithoutReplacement) for law in tree.proposals.values())
    ranks = sibling_ranks(tree)
    below: dict[int, tuple[int, ...]] = {0: ()}
    for node in range(len(tree)):
        below |= {child: (*below[node], ranks[child]) for child in tree.children(node)}
    assert sorted(below.values()) == sorted([(), *WIDE])


def test_few_observations_lean_on_those_of_other_places():
    shares = SiblingShares()
    chain = ((0,), (0, 0), (0, 0, 0))
    for seed in range(3):
        shares.add(*judged(chain, vocab=9, seed=seed))
    own, other = (shares.table(depth, 0)[0, 0] for depth in (1, 2))
    assert own != other
    # Of three trees each, both are close to what was seen at both.
    assert abs(own - other) < 6 / FEW


def test_shares_are_measured_at_the_drafts_own_temperature():
    """A draft that is its target at half the temperature: at twice that, all is accepted."""
    target, draft = ToyModel(9, seed=3), ToyModel(9, seed=3, sharpness=2 * 1.5)

    def share(draft_sampling: SamplingParams | None = None) -> float:
        shares = measured_shares(
            ToyBackend(target),
            ModelDrafter(ToyBackend(draft)),
            [[0, 1], [2]],
            shapes=[((0,),)],
            verifier=RaceTraversal(),
            sampling=SamplingParams(temperature=1.0),
            draft_sampling=draft_sampling,
            tokens=6,
        )
        return float(shares.table(0, 0)[0, 0])

    assert share(SamplingParams(temperature=2.0)) == pytest.approx(1)
    assert share() < 0.95


def test_a_fit_draws_as_it_is_told(monkeypatch):
    drawn = []

    def watching(*args: Any, draft_sampling: SamplingParams | None = None, **options: Any) -> SiblingShares:
        drawn.append(draft_sampling)
        return measured_shares(*args, draft_sampling=draft_sampling, **options)

    monkeypatch.setattr(shape_search, "measured_shares", watching)
    pair = (ToyBackend(ToyModel(9, seed=3)), ModelDrafter(ToyBackend(ToyModel(9, seed=4))))
    own = SamplingParams(temperature=0.7)
    found = shape_search.ShapeFit(RaceTraversal())(
        *pair,
        [[0, 1]],
        budgets=[2, 3],
        sampling=SamplingParams(temperature=1.0),
        draft_sampling=own,
        tokens=4,
        seed=0,
        watch=list,
    )
    assert drawn == [own]
    assert all(1 <= len(as_shape(found[budget])) <= budget for budget in (2, 3))


def test_nothing_measured_is_refused():
    with pytest.raises(InvalidInput, match="No tree was measured"):
        best_sorted_shape(SiblingShares(), budget=4, depth=2)
    with pytest.raises(InvalidInput, match="budget is 0"):
        best_sorted_shape(measured(0, [WIDE]), budget=0, depth=2)
    assert np.isfinite(best_sorted_shape(measured(0, [WIDE]), budget=1, depth=1)[1])
