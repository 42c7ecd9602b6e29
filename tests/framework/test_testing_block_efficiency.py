"""Exact block efficiency and its optimum, against what is known of them."""

import itertools

import pytest
import torch
from hypothesis import given, settings

from draftwood.laws.proposals import WithoutReplacement, WithReplacement
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import (
    NextTokenModel,
    ToyModel,
    drawn_trees,
    expected_tokens,
    joint_law,
    one_round_law,
    optimal_tokens,
)
from draftwood.testing.models.generators import toy_models
from draftwood.testing.models.small_strategies import toy_drafter

SOLVED = 1e-8
"""To how much the optimum is found: HiGHS takes numbers of about 1e-9 for 0, which sharp targets have."""

POLICIES = [Chain(2), FixedTree(1, 2), FixedTree(2, 2, 3), FixedTree(1, 2, law="with-replacement"), DySpec(3)]


def optimum(policy, target, draft):
    return optimal_tokens(drawn_trees(policy, toy_drafter(policy, draft)), target=target)


@settings(max_examples=10)
@given(toy_models(3), toy_models(3))
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_drawn_trees_are_distinct_and_all(policy, target, draft):
    trees = drawn_trees(policy, toy_drafter(policy, draft), prompt=(1, 0))
    assert sum(one.weight for one in trees) == pytest.approx(1, abs=1e-12)
    keys = {(tuple(one.tree.tokens.tolist()), tuple(one.tree.parents.tolist())) for one in trees}
    assert len(keys) == len(trees)
    law = one_round_law(trees, RecursiveRejection(), target=target, prompt=(1, 0))
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_expected_tokens_are_those_of_the_production_loop(policy):
    target, drafter = ToyModel(2, seed=1), toy_drafter(policy, ToyModel(2, seed=2))
    tokens_a_round = joint_law(policy, RecursiveRejection(), target=target, drafter=drafter, tokens=1)
    assert expected_tokens(policy, RecursiveRejection(), target=target, drafter=drafter) == pytest.approx(
        tokens_a_round.expected_tokens, abs=1e-12
    )


@settings(max_examples=10)
@given(toy_models(3), toy_models(3))
@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_no_verifier_beats_the_optimum(policy, target, draft):
    best = optimum(policy, target, draft)
    for verifier in (RecursiveRejection(), Traversal()):
        tokens_a_round = expected_tokens(policy, verifier, target=target, drafter=toy_drafter(policy, draft))
        assert tokens_a_round <= best + SOLVED


@settings(max_examples=15)
@given(toy_models(3), toy_models(3))
def test_block_verification_is_the_optimum_on_chains(target, draft):
    drafter = toy_drafter(Chain(2), draft)
    tokens_a_round = expected_tokens(Chain(2), Traversal(), target=target, drafter=drafter)
    assert tokens_a_round == pytest.approx(optimum(Chain(2), target, draft), abs=SOLVED)


@pytest.mark.parametrize("law", [WithoutReplacement, WithReplacement])
@pytest.mark.parametrize("children", [1, 2, 3])
@settings(max_examples=10)
@given(toy_models(4), toy_models(4))
def test_one_level_is_a_cut(law, children, target, draft):
    """Max flow: for the best set A of tokens, T(A) and the chance that a tree holds a token outside A."""
    trees = drawn_trees(policy := FixedTree(1, children, law=law), toy_drafter(policy, draft))
    wanted = target.probs([0])
    subsets = itertools.chain.from_iterable(itertools.combinations(range(4), n) for n in range(5))
    cut = min(
        float(wanted[list(inside)].sum())
        + sum(one.weight for one in trees if not set(one.tree.tokens[1:].tolist()) <= set(inside))
        for inside in subsets
    )
    assert optimal_tokens(trees, target=target) == pytest.approx(1 + cut, abs=1e-9)


def test_a_draft_equal_to_its_target_is_accepted_whole():
    target = ToyModel(3, seed=4)
    assert optimum(Chain(3), target, ToyModel(3, near=target, mix=1.0)) == pytest.approx(4, abs=1e-9)


def test_a_draft_that_meets_nothing_of_its_target_gains_nothing():
    class OneHot(NextTokenModel):
        def logits(self, text):
            return torch.eye(3, dtype=torch.float64)[self.seed].log()

    assert optimum(FixedTree(2, 2), OneHot(3, seed=0), OneHot(3, seed=1)) == pytest.approx(1, abs=1e-9)
