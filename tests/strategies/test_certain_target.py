"""A target that is certain of its tokens: the walk follows them, as its coins would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from draftwood import CounterRandomness, InvalidDistribution, Proposal, Randomness, SamplingParams, TreePolicy
from draftwood.decoding.round_distributions import TargetRows
from draftwood.protocols.registry import create, names
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.independent_paths import IndependentPaths
from draftwood.strategies.verifiers.batched.device_forms import KERNELS
from draftwood.strategies.verifiers.orders.sibling_order import DrawnOrder, Tries
from draftwood.strategies.verifiers.walk import TreeWalk
from draftwood.testing import ToyModel
from draftwood.testing.models.small_strategies import fits
from tests.strategies.drawn_trees import grow

VOCAB = 4
POLICIES: list[TreePolicy] = [
    FixedTree(2, (2, 1), 4),
    FixedTree(2, 3, law="with-replacement"),
    FixedTree(2, 2, law="top-and-sample"),
    FixedTree(2, 2, law="top-k"),
    DySpec(6),
    Chain(3),
    IndependentPaths(3, 2),
]
WALKS = [name for name in names("verifiers") if isinstance(create("verifiers", name), TreeWalk)]
GREEDY = SamplingParams(temperature=0.0)


@pytest.mark.parametrize("name", WALKS)
@given(data=st.data())
def test_a_certain_target_is_followed_as_coins_would_have_it(name: str, data: st.DataObject) -> None:
    verifier: Any = create("verifiers", name)
    policy = data.draw(st.sampled_from([policy for policy in POLICIES if fits(policy, verifier)]))
    seed = data.draw(st.integers(0, 10_000))
    tree = grow(policy, ToyModel(VOCAB, seed=seed), seed=seed)
    best = data.draw(st.lists(st.integers(0, VOCAB - 1), min_size=len(tree), max_size=len(tree)))
    logits = torch.zeros(len(tree), VOCAB).scatter_(1, torch.tensor(best).unsqueeze(1), 5.0)
    lazy: Any = TargetRows(logits, GREEDY)
    rng = CounterRandomness.seeded(seed)
    judged = verifier.verify(tree, lazy, rng)
    # Any other walk takes at least the coin of its extra token.
    assert (rng.used == 0) == ((type(verifier.order), verifier.leaf_first) in KERNELS)
    assert judged == verifier.verify(tree, GREEDY.distribution(logits), CounterRandomness.seeded(seed))
    assert judged.extra == best[judged.path[-1]]


@pytest.mark.parametrize("leaf_first", [False, True])
def test_an_order_of_somebodys_own_is_asked_all_the_same(leaf_first: bool) -> None:
    asked = []

    @attrs.frozen
    class OwnOrder(DrawnOrder):
        def tries(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> Tries:
            asked.append(list(tokens))
            return super().tries(tokens, proposal, rng)

    tree = grow(FixedTree(2, 2), ToyModel(VOCAB, seed=1))
    logits = torch.zeros(len(tree), VOCAB)
    logits[:, int(tree.tokens[1])] = 5
    lazy: Any = TargetRows(logits, GREEDY)
    TreeWalk(OwnOrder(), leaf_first=leaf_first).verify(tree, lazy, CounterRandomness.seeded(0))
    assert asked


def test_logits_that_are_not_numbers_are_refused() -> None:
    tree = grow(Chain(1), ToyModel(VOCAB, seed=1))
    logits = torch.full((len(tree), VOCAB), torch.nan)
    lazy: Any = TargetRows(logits, GREEDY)
    with pytest.raises(InvalidDistribution, match="hold nan"):
        create("verifiers", "recursive-rejection").verify(tree, lazy, CounterRandomness.seeded(0))
