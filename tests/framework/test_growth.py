"""Tests of `Growth`, which grows the trees of all rows, and of `Siblings`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import (
    CounterRandomness,
    Deterministic,
    LevelPlan,
    TreeBatch,
    TreeBuilder,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.base.errors import InvalidInput, InvalidTree
from draftwood.laws.proposals import PerChild, Proposal, TopThenSample
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.trees.growth import Growth, by_distributions
from draftwood.trees.level_plan import Levels

LAWS: list[type[Proposal]] = [Deterministic, WithoutReplacement, WithReplacement, TopThenSample]


def streams(rows: int, seed: int = 0) -> list[CounterRandomness]:
    return [CounterRandomness.seeded(10 * seed + row) for row in range(rows)]


def distributions(rows: int, nodes: int, seed: int, vocab: int = 6) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, nodes, vocab, generator=generator, dtype=torch.float64).softmax(-1)


def comb(law: type[Proposal], counts: list[int], *, ahead: int = 0, seen: list[Any] | None = None) -> Any:
    """Opens the root, then all of its children at once; draws `ahead` more of the root."""
    tree = TreeBuilder(0)
    (siblings,) = yield tree.open([0], law, counts[0], ahead=ahead)
    for _ in range(ahead):
        siblings.draw()
    below = tree.add_siblings(0, siblings)
    if below:
        for node, one in zip(below, (yield tree.open(below, law, counts[1])), strict=True):
            tree.add_siblings(node, one)
            if seen is not None:
                seen.append(one)
    return tree.finish()


@given(
    laws=st.lists(st.sampled_from(LAWS), min_size=1, max_size=4),
    counts=st.lists(st.integers(1, 3), min_size=2, max_size=2),
    seed=st.integers(0, 10**6),
)
@settings(max_examples=40, deadline=None)
def test_rows_of_several_laws_get_the_children_that_each_gets_alone(laws, counts, seed):
    first, second = distributions(len(laws), 1, seed), distributions(len(laws), 6, seed + 1)

    def grown(rows: list[int]) -> list[Any]:
        every = streams(len(laws), seed)
        growth = Growth([comb(laws[row], counts) for row in rows], [every[row] for row in rows])
        assert growth.requests is not None
        growth.answer(first[rows])
        while growth.requests is not None:
            growth.answer(second[rows][:, : growth.requests.tokens.shape[1]])
        return list(growth.trees())

    together = grown([*range(len(laws))])
    for row, tree in enumerate(together):
        (alone,) = grown([row])
        assert tree.tokens.tolist() == alone.tokens.tolist()
        assert tree.parents.tolist() == alone.parents.tolist()
        assert {type(law) for law in tree.proposals.values()} <= {laws[row]}


@pytest.mark.parametrize("law", [Deterministic, WithoutReplacement])
def test_children_one_by_one_are_those_that_are_drawn_at_once(law):
    p = distributions(1, 1, 3)[0]

    def tree(counts: int, ahead: int) -> list[int]:
        growing = by_distributions(comb(law, [counts, 1], ahead=ahead), streams(1)[0])
        next(growing)
        try:
            request = growing.send(p)
            growing.send(p.expand(len(request), -1))
        except StopIteration as finished:
            return finished.value.tokens[1 : 1 + counts + ahead].tolist()  # type: ignore[no-any-return]
        raise AssertionError

    assert tree(4, 0) == tree(2, 2) == tree(0, 4)


@pytest.mark.parametrize(
    ("law", "left"), [(WithoutReplacement, [1.0, None, None, 0.0]), (Deterministic, [0.5, 0.3, 0.2, 0.0])]
)
def test_what_the_next_child_is_taken_from_is_told(law, left):
    p = torch.tensor([[[0.5, 0.3, 0.2, 0.0]]], dtype=torch.float64)
    seen: list[Any] = []
    Growth([_hands_on(TreeBuilder(0).open([0], law), seen)], streams(1)).answer(p)
    (siblings,) = seen
    for expected in left:
        known = 1 - sum(siblings.chances) if expected is None else expected
        assert siblings.weight == pytest.approx(known, abs=1e-12)
        assert siblings.draw() == (expected != 0.0)
    assert sorted(siblings.tokens) == [0, 1, 2]  # a token without probability is never a child


def _hands_on(opening: Any, seen: list[Any]) -> Any:
    opening.ahead = 3
    seen += yield opening
    return TreeBuilder(0).finish()


def test_the_enumerator_visits_children_that_are_drawn_one_by_one():
    p = torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64)

    def grow(rng: Any) -> tuple[int, ...]:
        seen: list[Any] = []
        opening = TreeBuilder(0).open([0], WithoutReplacement)
        Growth([_hands_on(opening, seen)], [rng]).answer(p.unsqueeze(0))
        while seen[0].draw():
            pass
        return tuple(seen[0].tokens)

    found: dict[tuple[int, ...], float] = {}
    for weight, tokens in enumerate_outcomes(grow):
        found[tokens] = found.get(tokens, 0.0) + weight
    assert len(found) == 6
    assert found[1, 0, 2] == pytest.approx(0.3 * 0.5 / 0.7)


def test_trees_of_one_law_are_one_batch_and_others_a_list():
    for law, batch in ((WithReplacement, True), (TopThenSample, False)):
        growth = Growth([comb(law, [2, 1]) for _ in range(3)], streams(3))
        while growth.requests is not None:
            growth.answer(distributions(3, growth.requests.tokens.shape[1], 5))
        trees = growth.trees()
        assert isinstance(trees, TreeBatch) == batch
        for tree in trees:
            for node, proposal in tree.proposals.items():
                assert type(proposal) is law
                tokens = [int(tree.tokens[child]) for child in tree.children(node)]
                assert all(proposal.conditional(k, tokens[:k])[token] > 0 for k, token in enumerate(tokens))


def test_trees_of_a_batch_keep_their_notes():
    """Also where the limit of a row cuts its tree; a row without a note has None."""

    def noted(note):
        tree = TreeBuilder(0)
        siblings = yield tree.open([0], WithoutReplacement, 2)
        children = tree.add_siblings(0, siblings[0])
        for child, found in zip(children, (yield tree.open(children, WithoutReplacement, 1)), strict=True):
            tree.add_siblings(child, found)
        return tree.finish(note=note)

    growth = Growth([noted("first"), noted(None), noted((1, 2))], streams(3))
    while growth.requests is not None:
        growth.answer(distributions(3, growth.requests.tokens.shape[1], 6))
    trees = growth.trees()
    assert isinstance(trees, TreeBatch)
    for found, sizes in ((trees, [5, 5, 5]), (trees.truncated([1, 2, 0]), [3, 5, 1])):
        assert [tree.note for tree in found] == ["first", None, (1, 2)]
        assert [tree.size for tree in found] == sizes


def test_a_law_that_draws_all_at_once_draws_none_ahead():
    growth = Growth([comb(WithReplacement, [1, 1], ahead=2)], streams(1))
    with pytest.raises(InvalidInput, match="WithReplacement draws all children of a node at once"):
        growth.answer(distributions(1, 1, 0))


def yields(*asked: Any, result: Any = None) -> Any:
    yield from asked
    return result or TreeBuilder(0).finish()


@pytest.mark.parametrize(
    ("growing", "message"),
    [
        (lambda: yields("nodes"), "yielded str; yield what TreeBuilder.open or .request gives"),
        (lambda: yields(TreeBuilder(0).open([], Deterministic)), "asks for no node at all"),
        (lambda: yields(result="tree"), "returned str; it must return a TokenTree"),
    ],
)
def test_what_is_no_growth_is_named(growing, message):
    with pytest.raises(InvalidTree, match=message):
        Growth([growing()], streams(1))


def test_a_plan_is_followed_only_where_all_rows_announce_it():
    plan = LevelPlan(2, 2, branching=2, budget=4)

    def planned(chosen: Any) -> Any:
        tree = TreeBuilder(0)
        yield tree.open([0], Deterministic, 2, plan=chosen)
        yield tree.request([0])
        return tree.finish()

    other = LevelPlan(1, 2, branching=2, budget=4)
    assert Growth([planned(plan), planned(plan)], streams(2)).plan == plan
    assert Growth([planned(plan), planned(other)], streams(2)).plan is None
    assert Growth([planned(plan), comb(Deterministic, [1, 1])], streams(2)).plan is None
    growth = Growth([planned(plan)], streams(1))
    nothing = np.zeros((1, 1, 1), np.int64)
    levels = Levels(nothing, nothing, nothing.astype(np.float64), widths=(1,), vocab_size=4)
    with pytest.raises(InvalidTree, match="announced a plan and then asks for distributions"):
        growth.follow(levels)


def test_followed_levels_put_every_candidate_below_its_own_parent():
    plan = LevelPlan(depth=2, width=2, branching=2, budget=6)

    def grow() -> Any:
        tree = TreeBuilder(0)
        (siblings,) = yield tree.open([0], Deterministic, 2, plan=plan)
        below = tree.add_siblings(0, siblings)
        for node, one in zip(below, (yield tree.open(below, Deterministic, 2)), strict=True):
            tree.add_siblings(node, one)
        return tree.finish()

    # The root's children are 1 and 2. Below 1, which is number 0 of its level, is 3; below 2 are 4 and 5.
    levels = Levels(
        np.array([[[1, 2, 0], [4, 3, 5]]]),
        np.array([[[0, 0, 0], [1, 0, 1]]]),
        np.array([[[0.5, 0.4, 0.0], [0.3, 0.25, 0.1]]]),
        widths=(1, 2),
        vocab_size=6,
    )
    growth = Growth([grow()], streams(1))
    growth.follow(levels)
    (tree,) = growth.trees()
    assert tree.tokens.tolist() == [0, 1, 2, 3, 4, 5]
    assert tree.parents.tolist() == [-1, 0, 0, 1, 2, 2]
    assert growth.requests is None


def test_followed_levels_leave_out_what_no_tree_of_the_plan_holds():
    plan = LevelPlan(depth=2, width=2, branching=2, budget=2)
    given = []

    def grow() -> Any:
        tree = TreeBuilder(0)
        (siblings,) = yield tree.open([0], Deterministic, 2, plan=plan)
        below = tree.add_siblings(0, siblings)
        given.append(siblings.tokens)
        for node, one in zip(below, (yield tree.open(below, Deterministic, 2)), strict=True):
            given.append(one.tokens)
            tree.add_siblings(node, one)
        return tree.finish()

    # The two best candidates are 1, and 3 below it.
    levels = Levels(
        np.array([[[1, 2], [3, 4]]]),
        np.array([[[0, 0], [0, 0]]]),
        np.array([[[0.8, 0.2], [0.5, 0.3]]]),
        widths=(1, 1),
        vocab_size=5,
    )
    growth = Growth([grow()], streams(1))
    growth.follow(levels)
    assert given == [[1], [3]]
    assert growth.trees()[0].tokens.tolist() == [0, 1, 3]


def test_a_builder_keeps_chosen_nodes_with_their_laws():
    tree = TreeBuilder(7)
    law = PerChild([torch.tensor([0.5, 0.5])] * 2)
    first, second = tree.add_children(0, [1, 0], law)
    tree.add_children(second, [1], law)
    tree.keep([0, second, 3])
    kept = tree.finish()
    assert kept.tokens.tolist() == [7, 0, 1]
    assert kept.parents.tolist() == [-1, 0, 1]
    assert kept.depths.tolist() == [0, 1, 2]
    assert set(kept.proposals) == {0, 1}
    tree.keep([0, 1])
    assert set(tree.finish().proposals) == {0}
    assert first == 1
