"""Policies whose trees follow the draft's confidence: proved, with what they learn."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.several import Several
from draftwood.strategies.policies.beam import Beam
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynamic_depth import DynamicDepth
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.expand_rerank import ExpandRerank
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.redrafter import BeamPaths
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import ToyBackend, ToyModel, assert_lossless, parametrize_with_checks
from tests.strategies.tables import grow, table
from tests.thorough import checks_but

SEEDS = st.integers(0, 10**6)


def toy(seed=7, vocab=3):
    return ModelDrafter(ToyBackend(ToyModel(vocab, seed=seed)))


LAWS = parametrize_with_checks(
    [
        Chain(3, stop_below=0.5),
        Chain(2, "with-replacement", 0.6),
        Beam(2, 3),
        Beam(3, 3, 4),
        BeamPaths(2, 3),
        ExpandRerank(3, 2, 2, 5),
        DynaTree(2, 3, 2, 4),
        DynaTree(2, 3, 2, 4, law="without-replacement", threshold=0.2),
        DynaTree(1, 2, 2, 4, law="with-replacement"),
        DynaTree(1, 2, 2, 3, law="per-drafter"),
        DynaTree(1, 2, 3, 3, law="top-and-sample"),
        DynamicDepth(Chain(3), 0.5),
        DynamicDepth(DySpec(4), 0.6),
        DynamicDepth(FixedTree(2, 2, 4), 0.7),
        DynamicDepth(FixedTree(2, 2, 3, law="per-drafter"), 0.4),
        DynamicDepth("expand-rerank", 0.9, 2),
    ],
    models=2,
)


LEARNT = [
    *(f"DynaTree{number}-learnt" for number in (3, 4, 5)),
    *(f"DynamicDepth{number}-learnt" for number in (2, 3, 4, 5)),
]
"""A policy learns alike whatever law it draws by; one law that draws and one that does not are always run."""


@checks_but(LAWS, LEARNT)
def test_law_p_and_law_v(check):
    check()


@pytest.mark.parametrize(
    ("policy", "drafter", "tokens"),
    [
        (DynaTree(1, 3, 2, 3, warmup=1), toy(), 4),
        (DynaTree(1, 2, 2, 2, warmup=1, law="without-replacement"), toy(), 3),
        (DynamicDepth(Chain(2), 0.6), toy(), 3),
        (DynamicDepth(FixedTree(1, 2, law="per-drafter"), 0.6), Several([toy(), toy(8)]), 2),
    ],
    ids=["DynaTree", "DynaTree, drawn", "dynamic depth", "dynamic depth, several drafters"],
)
def test_learning_keeps_the_targets_law_over_several_rounds(policy, drafter, tokens):
    assert policy.learns
    target = ToyModel(3, seed=1)
    result = assert_lossless(policy, RecursiveRejection(), target=target, drafter=drafter, tokens=tokens)
    assert result.expected_tokens > 1


@settings(max_examples=30)
@given(SEEDS, st.integers(1, 200))
def test_budgets_hold_at_any_size(seed, budget):
    for policy in (Beam(5, 5, budget), ExpandRerank(4, 4, 4, budget), DynaTree(budget=budget, threshold=0.0)):
        tree, _ = grow(policy, table(5, seed))
        assert len(tree) - 1 <= budget
