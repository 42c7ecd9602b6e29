"""`ArrayPolicy`: trees of all rows that one generator grows, against policies that grow row by row."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood import (
    ArrayPolicy,
    CounterRandomness,
    Deterministic,
    GrowingRows,
    InvalidInput,
    InvalidTree,
    Proposal,
    RowTrees,
    RowView,
    SamplingParams,
    TokenTree,
    TopThenSample,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.policies import StaticTree
from draftwood.protocols.shape import check_shape
from draftwood.testing import LawBroken
from draftwood.testing.checks.strategy_checks import checks_for
from draftwood.testing.models.proof_models import PROOF_MODELS
from draftwood.testing.models.small_strategies import toy_drafter
from draftwood.testing.proofs.grown_rows import grown
from draftwood.testing.proofs.joint_rows import assert_rows_lossless
from draftwood.testing.proofs.lossless import assert_lossless
from draftwood.verifiers import RecursiveRejection
from tests.framework.decoding import decoder


@attrs.frozen
class Together(ArrayPolicy):
    """Every leaf gets `width` children, down to `depth`."""

    width: int = 2
    depth: int = 2
    law: type[Proposal] = WithoutReplacement
    adaptive = False

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return frozenset({self.law})

    def grow_together(
        self, roots: Sequence[int], states: Sequence[Any], views: Sequence[RowView | None]
    ) -> GrowingRows:
        rows, leaves = len(roots), 1
        trees = RowTrees(roots, most=sum(self.width**layer for layer in range(1, self.depth + 1)))
        counts = np.ones(rows, np.int64)
        for _ in range(self.depth):
            places = np.tile(np.arange(leaves), (rows, 1))
            drawn = yield trees.open(places, counts, self.law, children=self.width)
            kept = np.where(np.arange(leaves) < counts[:, None], (drawn.chances > 0).sum(-1), 0)
            trees.add(drawn, kept)
            counts = kept.sum(1)
            leaves = int(counts.max())
            if not leaves:
                break
        return trees.finish(notes=[("row", row) for row in range(rows)])


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 4),
    width=st.integers(1, 3),
    depth=st.integers(1, 3),
    law=st.sampled_from([Deterministic, WithoutReplacement]),
    seed=st.integers(0, 99),
)
def test_trees_are_those_of_a_policy_that_grows_row_by_row(rows, width, depth, law, seed) -> None:
    def drafts() -> list[Any]:
        return [models.draft.probs for models in (PROOF_MODELS * 2)[:rows]]

    def rngs() -> list[CounterRandomness]:
        return [CounterRandomness.seeded(seed + row) for row in range(rows)]

    roots = [row % 3 for row in range(rows)]
    paths = tuple(path for layer in range(depth) for path in product(range(width), repeat=layer + 1))
    found = grown(Together(width, depth, law), roots, rngs(), drafts())
    expected = grown(StaticTree(paths, law), roots, rngs(), drafts())
    for row, (tree, other) in enumerate(zip(found, expected, strict=True)):
        assert tree.note == ("row", row)
        assert (tree.tokens.tolist(), tree.parents.tolist()) == (
            other.tokens.tolist(),
            other.parents.tolist(),
        )
        assert tree.depths.tolist() == other.depths.tolist()
        assert set(tree.proposals) == set(other.proposals)
        for node, proposal in tree.proposals.items():
            assert type(proposal) is law
            if law is WithoutReplacement:
                assert torch.equal(p_of(proposal), p_of(other.proposals[node]))


def p_of(proposal: Proposal) -> torch.Tensor:
    assert isinstance(proposal, WithoutReplacement)
    return proposal.p


@pytest.mark.parametrize("law", [Deterministic, WithReplacement, WithoutReplacement])
def test_it_keeps_the_law_of_one_row_and_of_several(law: type[Proposal]) -> None:
    policy = Together(2, 1, law)
    models = PROOF_MODELS[0]
    drafts = toy_drafter(policy, models.draft)
    assert_lossless(policy, RecursiveRejection(), target=models.target, drafter=drafts, tokens=3)
    assert_rows_lossless(policy, RecursiveRejection(), PROOF_MODELS[:2])


@attrs.frozen
class Unlikely(Together):
    """Keeps the children that the draft thinks unlikely, and so decides on them by their own token."""

    def grow_together(
        self, roots: Sequence[int], states: Sequence[Any], views: Sequence[RowView | None]
    ) -> GrowingRows:
        trees, places = RowTrees(roots, most=1), np.zeros((len(roots), 1), np.int64)
        drawn = yield trees.open(places, np.ones(len(roots), np.int64), self.law, children=1)
        trees.add(drawn, (drawn.chances < 0.4).sum(-1))
        return trees.finish()


def test_one_that_decides_by_a_nodes_own_token_is_told() -> None:
    failed = []
    for name, check in checks_for(Unlikely(law=WithoutReplacement)):
        try:
            check()
        except LawBroken:
            failed.append(name)
    assert "proposal-law" in failed
    assert "rows-jointly" in failed


def test_texts_of_greedy_rows_are_those_of_the_target() -> None:
    prompts = [[1, 2, 3], [4], [2, 2]]
    options: dict[str, Any] = {"max_new_tokens": 14, "sampling": SamplingParams(0.0), "eos_token_id": []}
    found = decoder(Together(2, 3, Deterministic)).generate(prompts, **options)
    expected = decoder(StaticTree(((0,),), Deterministic)).generate(prompts, **options)
    assert torch.equal(found, expected)


def test_grow_is_that_of_one_row() -> None:
    policy, prob = Together(2, 2), torch.tensor([0.5, 0.3, 0.2])

    def alone() -> Any:
        growing = policy.grow(1, CounterRandomness.seeded(5))
        request: Any = next(growing)
        try:
            while True:
                request = growing.send(prob.expand(len(request), 3))
        except StopIteration as finished:
            return finished.value

    (tree,) = grown(policy, [1], [CounterRandomness.seeded(5)], [lambda _: prob])
    assert isinstance(alone(), TokenTree)
    assert alone().tokens.tolist() == tree.tokens.tolist()


@attrs.frozen
class Odd(Together):
    """Does what `how` says in the place of growing."""

    how: str = ""

    def grow_together(self, roots: Any, states: Any, views: Any) -> Any:
        trees, rows = RowTrees(roots, most=4), len(roots)
        if self.how == "nothing":
            yield trees.open(np.zeros((rows, 1), np.int64), np.zeros(rows, np.int64), self.law, children=1)
        elif self.how == "law":
            yield trees.open(
                np.zeros((rows, 1), np.int64), np.ones(rows, np.int64), TopThenSample, children=1
            )
        elif self.how == "leaf":
            yield trees.open(np.full((rows, 1), 1), np.ones(rows, np.int64), self.law, children=1)
        elif self.how in ("drawn", "room"):
            children = 2 if self.how == "drawn" else 8
            places = np.zeros((rows, 1), np.int64)
            drawn = yield trees.open(places, np.ones(rows, np.int64), self.law, children=children)
            trees.add(drawn, np.full((rows, 1), min(children + 1, 6)))
        elif self.how == "laws":
            places, ones = np.zeros((rows, 1), np.int64), np.ones(rows, np.int64)
            drawn = yield trees.open(places, ones, self.law, children=1)
            trees.add(drawn, np.ones((rows, 1), np.int64))
            yield trees.open(places, ones, Deterministic, children=1)
        elif self.how == "yields":
            yield 3
        return trees if self.how == "returns" else 7


def even(path: Sequence[int]) -> torch.Tensor:
    return torch.full((9,), 1 / 9)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("nothing", "asks for no node at all; leave the layer out"),
        ("law", "opens nodes by TopThenSample, whose children need more than arrays hold; write `grow`"),
        ("leaf", r"Row 1 opens a leaf that it does not have: places \[1\] of 1 leaves"),
        ("drawn", r"Row 0 keeps \[3\] children of its leaves, of at most 2 that were drawn"),
        ("room", r"Row 0 keeps \[6\] children of its leaves, of at most 8 .* has 1 of 5 nodes; keep fewer"),
        ("laws", "opened by Deterministic after one by WithoutReplacement; take one law"),
        ("yields", "yielded int; yield what RowTrees.open gives"),
        ("", "returned int; return what RowTrees.finish gives"),
    ],
)
def test_what_is_no_growth_is_told_in_one_sentence(how: str, message: str) -> None:
    with pytest.raises(InvalidTree, match=message):
        grown(Odd(how=how), [1, 2], [CounterRandomness(0), CounterRandomness(1)], [even, even])


def test_one_without_a_growth_of_all_rows_is_refused() -> None:
    class Bare(ArrayPolicy):
        laws = frozenset({Deterministic})

    with pytest.raises(
        InvalidInput, match="Bare does not define 'grow_together', which every ArrayPolicy has"
    ):
        check_shape(Bare())  # type: ignore[abstract]
