"""Law V by enumeration, and that the proof sees a bias."""

from typing import Any

import attrs
import pytest
import torch

from draftwood import (
    CounterRandomness,
    InvalidDistribution,
    TreeBuilder,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.drafters.several import Several
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.class_ordered_rejection import ClassOrderedRejection
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import (
    BudgetExceeded,
    ToyBackend,
    ToyModel,
    assert_lossless,
    enumerate_outcomes,
    joint_law,
)
from tests.thorough import marks_unless


def toy(vocab=3, seed=7):
    return ModelDrafter(ToyBackend(ToyModel(vocab, seed=seed)))


CASES = {
    "chain": (Chain(2), toy()),
    "chain, most likely": (Chain(2, "top-k"), toy()),
    "tree without replacement": (FixedTree(2, 2, 3), toy()),
    "tree without replacement, threshold": (FixedTree(2, 2, 4, 0.3), toy()),
    "tree of top-k, threshold": (FixedTree(2, 2, 4, 0.2, "top-k"), toy()),
    "tree with replacement": (FixedTree(1, 3, law="with-replacement"), toy()),
    "one child from each drafter": (FixedTree(1, 2, law="per-drafter"), Several([toy(), toy(seed=8)])),
    "DySpec": (DySpec(4), toy()),
    "DySpec of top-k": (DySpec(4, "top-k"), toy()),
    "layered DySpec": (LayeredDySpec(3), toy()),
    "layered DySpec, threshold": (LayeredDySpec(3, threshold=0.2), toy()),
    "layered DySpec of top-k": (LayeredDySpec(4, law="top-k"), toy()),
    "DySpec over prompt lookup": (DySpec(3), PromptLookup(3)),
}


PLAIN = [case for case in CASES if "threshold" not in case]
SHARP = ["tree without replacement", "DySpec over prompt lookup"]


@pytest.mark.parametrize(
    ("case", "seed", "sharpness"),
    [
        pytest.param(case, seed, sharpness, marks=marks_unless(case in (PLAIN if sharpness == 1 else SHARP)))
        for seed, sharpness in ((1, 1.0), (2, 4.0))
        for case in CASES
    ],
)
def test_the_emitted_tokens_have_the_targets_law(case, seed, sharpness):
    policy, drafter = CASES[case]
    target = ToyModel(3, seed=seed, sharpness=sharpness)
    result = assert_lossless(policy, RecursiveRejection(), target=target, drafter=drafter, prompt=(2, 0, 2))
    assert result.expected_tokens > 1 or isinstance(drafter, PromptLookup)


def test_temperature_is_part_of_the_targets_law():
    assert_lossless(
        DySpec(3), RecursiveRejection(), target=ToyModel(3, seed=1), drafter=toy(), temperature=0.5
    )


@attrs.frozen
class SameResidual(RecursiveRejection):
    """Broken on purpose: a rejected sibling leaves the target as it was."""

    def verify(self, tree, target_probs, rng):
        outcome = RecursiveRejection().verify(tree, target_probs, rng)
        again = outcome.extra if outcome.bonus else rng.choose(target_probs[outcome.path[-1]])
        return attrs.evolve(outcome, extra=again)


@attrs.frozen
class Prunes(FixedTree):
    """Broken on purpose: drops a drawn child for its own low probability."""

    def grow(self, root, rng):
        tree = yield from super().grow(root, rng)
        law: Any = tree.proposals[0]
        likely = [v for v in range(1, len(tree)) if law.p[tree.tokens[v]] > 0.2 and int(tree.parents[v]) == 0]
        kept = [0, *likely]
        return attrs.evolve(
            tree,
            tokens=tree.tokens[kept],
            parents=tree.parents[kept],
            depths=tree.depths[kept],
            proposals={0: tree.proposals[0]} if likely else {},
            size=len(kept),
        )


@pytest.mark.parametrize(
    ("policy", "verifier"),
    [
        (FixedTree(1, 2), SameResidual()),
        (Prunes(1, 2), RecursiveRejection()),
    ],
    ids=["residual", "pruning after sampling"],
)
def test_the_proof_sees_a_biased_pair_and_names_the_worst_sequence(policy, verifier):
    with pytest.raises(AssertionError, match=r"is biased: tokens \(.*off by"):
        assert_lossless(policy, verifier, target=ToyModel(3, seed=1), drafter=toy())


def test_a_case_too_large_says_how_much_is_left():
    with pytest.raises(BudgetExceeded, match="20 outcomes were visited and a weight of"):
        joint_law(DySpec(6), RecursiveRejection(), target=ToyModel(4), drafter=toy(4), budget=20)


@pytest.mark.parametrize(
    ("p", "message"),
    [
        ([0.7, 0.7, 0.0], "sums to 1.4"),
        ([1.5, -0.5, 0.0], "holds -0.5"),
        ([float("nan"), 0.5, 0.5], "sums to nan"),
    ],
)
def test_a_draft_distribution_that_is_none_is_refused(p, message):
    tree = TreeBuilder(0)
    tree.add_children(0, [0], WithReplacement(torch.tensor(p)))
    with pytest.raises(InvalidDistribution, match=message):
        RecursiveRejection().verify(tree.finish(), torch.full((2, 3), 1 / 3), CounterRandomness.seeded(0))


@pytest.mark.parametrize("rest", [1e-3, 1e-8, 1e-11, 1e-39])
@pytest.mark.parametrize(
    "verifier",
    [
        RecursiveRejection(),
        ClassOrderedRejection(),
        ClassOrderedTraversal(),
        RaceTraversal(),
    ],
    ids=str,
)
def test_a_nearly_certain_draft_costs_no_digits_in_float32(verifier, rest):
    draft = torch.tensor([1 - rest, 0.6 * rest, 0.4 * rest], dtype=torch.float64).float()
    target = torch.tensor([0.2, 0.2, 0.6])

    def first_token(rng):
        tree = TreeBuilder(0)
        tree.add_children(0, rng.without_replacement(draft.double(), 2), WithoutReplacement(draft))
        return verifier.verify(tree.finish(), target.expand(3, 3), rng).emitted[0]

    law = torch.zeros(3, dtype=torch.float64)
    for weight, token in enumerate_outcomes(first_token):
        law[token] += weight
    assert (law - target).abs().max() < 1e-6
