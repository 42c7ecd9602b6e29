"""Rows that grow together get the same trees as one by one, with equal noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from draftwood import CounterRandomness, Growing, LevelPlan, Randomness, TreeBatch, TreePolicy
from draftwood.protocols import policy_states
from draftwood.strategies.policies.beam import Beam
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.expand_rerank import ExpandRerank
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.policies.sequoia import Sequoia
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.policies.stochastic_beam import StochasticBeam
from draftwood.strategies.policies.threshold_dyspec import ThresholdDySpec
from draftwood.testing.models.toy import ToyModel
from draftwood.testing.proofs.grown_rows import difference, grown, grown_as_planned

SAMPLED: list[TreePolicy] = [
    Chain(5),
    Chain(5, stop_below=0.4),
    FixedTree(3, 3, 17),
    FixedTree(3, (4, 1, 2), 256, threshold=0.1),
    StaticTree("stree-a"),
    StaticTree([(0,), (1,), (0, 0), (1, 0), (1, 1), (1, 0, 0)]),
    StaticTree("stree-b", sort=True),
    StaticTree([(0,), (1,), (2,), (0, 0), (2, 0), (0, 0, 0), (0, 0, 1)], sort=True),
    Sequoia(12),
    LayeredDySpec(14),
    LayeredDySpec(9, depth=3, threshold=0.05),
    LayeredDySpec(11, acceptance=(0.5, 0.2, 0.1)),
    ThresholdDySpec(20),
    ThresholdDySpec(6, threshold=0.0, depth=3),
    ThresholdDySpec(20, acceptance=(0.6, 0.2)),
    StochasticBeam(4, 3),
    StochasticBeam(1, 4),
]
FIXED: list[TreePolicy] = [
    Chain(5, "top-k"),
    FixedTree(3, 3, 17, law="top-k", threshold=0.05),
    StaticTree([(0,), (2,), (0, 1), (2, 0), (2, 3)], "top-k"),
    Sequoia(12, law="top-k"),
    LayeredDySpec(14, law="top-k"),
    ThresholdDySpec(20, law="top-k"),
    Beam(3, 3),
    Beam(3, 4, budget=7),
    ExpandRerank(depth=3, branching=4, width=3, budget=10),
]


def draft(vocab: int, seed: int, *, dead: bool, flat: bool, dtype: torch.dtype) -> Any:
    """Distributions by the path; some propose nothing, or few tokens."""
    model = ToyModel(vocab, seed=seed, sharpness=0.0 if flat else 2.0)

    def after(path: Sequence[int]) -> Tensor:
        p = model.probs(list(path)).to(dtype)
        if not dead:
            return p
        alive = (sum(path) + len(path)) % 4
        return p * (torch.arange(vocab) < alive * vocab // 3)

    return after


@pytest.mark.parametrize("policy", SAMPLED + FIXED, ids=str)
@settings(max_examples=15)
@given(
    vocab=st.sampled_from([2, 3, 7, 300]),
    rows=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    dead=st.booleans(),
    flat=st.booleans(),
)
@example(vocab=7, rows=3, seed=0, dead=True, flat=True)  # slots of equal value at the bar
def test_the_trees_are_those_that_rows_grow_alone(
    policy: TreePolicy, vocab: int, rows: int, seed: int, dead: bool, flat: bool
) -> None:
    drafts = [draft(vocab, seed + row, dead=dead, flat=flat, dtype=torch.float64) for row in range(rows)]
    roots = [row % vocab for row in range(rows)]
    trees = grown(policy, roots, [CounterRandomness.seeded(seed + row) for row in range(rows)], drafts)
    assert isinstance(trees, TreeBatch)
    for row, root in enumerate(roots):
        (alone,) = grown(policy, [root], [CounterRandomness.seeded(seed + row)], [drafts[row]])
        assert difference(alone, trees[row]) is None


PLANNED: list[TreePolicy] = [
    LayeredDySpec(14, depth=4, law="top-k"),
    LayeredDySpec(3, depth=2, law="top-k", threshold=0.05),
    LayeredDySpec(4, depth=6, law="top-k"),
    Beam(3, 3),
    Beam(3, 4, budget=7),
    ExpandRerank(depth=3, branching=4, width=3, budget=10),
    ExpandRerank(depth=1, branching=2, width=1, budget=10),
]


@pytest.mark.parametrize("policy", PLANNED, ids=str)
@settings(max_examples=15)
@given(
    vocab=st.sampled_from([2, 7, 128, 300]),
    rows=st.integers(1, 3),
    seed=st.integers(0, 10**6),
    dead=st.booleans(),
    most=st.sampled_from([None, 1, 3]),
)
def test_planned_trees_are_those_that_rows_grow_alone(
    policy: TreePolicy, vocab: int, rows: int, seed: int, dead: bool, most: int | None
) -> None:
    drafts = [draft(vocab, seed + row, dead=dead, flat=False, dtype=torch.float32) for row in range(rows)]
    roots = [row % vocab for row in range(rows)]
    trees = grown_as_planned(policy, roots, drafts, most=most)
    # Levels that are too narrow are noticed.
    assert trees is not None or most is not None
    for row, tree in enumerate(trees or ()):
        (alone,) = grown(policy, [roots[row]], [CounterRandomness.seeded(seed + row)], [drafts[row]])
        assert difference(alone, tree) is None


@settings(max_examples=60)
@given(
    vocab=st.sampled_from([2, 7]),
    budget=st.integers(1, 6),
    seed=st.integers(0, 10**6),
    dead=st.booleans(),
    flat=st.booleans(),
)
def test_levels_narrow_to_what_a_tree_can_hold_and_lose_nothing(
    vocab: int, budget: int, seed: int, dead: bool, flat: bool
) -> None:
    one = draft(vocab, seed, dead=dead, flat=flat, dtype=torch.float32)
    policy, rngs = LayeredDySpec(budget, depth=6, law="top-k"), [CounterRandomness.seeded(seed)]
    (tree,) = grown(policy, [0], rngs, [one])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LevelPlan, "useful", lambda plan, level: plan.width)
        (wide,) = grown(policy, [0], rngs, [one])
    assert difference(wide, tree) is None


def test_a_policy_without_a_plan_has_its_levels_asked_for() -> None:
    class Otherwise(Beam):
        def grow(self, root: int, rng: Randomness) -> Growing:
            return Chain(2, "top-k").grow(root, rng)

    for policy in (*SAMPLED, Otherwise(), LayeredDySpec(14, law="top-k")):
        growth = policy_states.growth(policy, [0], [CounterRandomness.seeded(0)], [None])
        assert growth.plan is None
