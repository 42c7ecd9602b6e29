"""A third-party law: drawn by shipped policies, judged by verifiers that only call `conditional`."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import pytest
import torch
from torch import Tensor

from draftwood import (
    DrawnChildren,
    IncompatibleStrategy,
    InvalidInput,
    Proposal,
    Randomness,
    WithoutReplacement,
    create,
    draw_children,
)
from draftwood.laws.randomness import CounterRandomness
from draftwood.protocols.compatibility import check_strategy_fits
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.static_tree import StaticTree
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.optimal_iid import OptimalIID
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.sample_and_match import SampleAndMatch
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.testing import ToyModel, assert_lossless, assert_proposal_law, check_strategy
from draftwood.testing.checks.verifier_checks import verifier_checks
from draftwood.testing.models.small_strategies import toy_drafter


@attrs.frozen(eq=False)
class Flatter(Proposal):
    """Every further sibling from a flatter distribution, without the earlier ones."""

    p: Tensor

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.p.shape[-1]

    @classmethod
    def draw(cls, probs: Tensor, *, count: int, rng: Randomness) -> DrawnChildren:
        law, tokens = cls(probs), list[int]()
        while len(tokens) < count and bool((p := law.conditional(len(tokens), tokens)).any()):
            tokens.append(rng.choose(p))
        return DrawnChildren(tokens, probs[tokens].tolist(), law)

    def conditional(self, k: int, earlier: Sequence[int]) -> Tensor:
        weights = torch.where(self.p > 0, self.p ** (1 / (k + 1)), 0)
        weights[list(earlier)] = 0
        return weights / weights.sum().clamp(min=1e-300)


class DeclaredOtherwise(Flatter):
    """Wrong: drawn as `Flatter` says, and judged as if it were without replacement."""

    @classmethod
    def draw(cls, probs: Tensor, *, count: int, rng: Randomness) -> DrawnChildren:
        drawn = Flatter.draw(probs, count=count, rng=rng)
        return DrawnChildren(drawn.tokens, drawn.chances, cls(probs))

    def conditional(self, k: int, earlier: Sequence[int]) -> Tensor:
        return WithoutReplacement(self.p).conditional(k, earlier)


TREES = [
    FixedTree(2, 2, law=Flatter),
    FixedTree(1, 3, law=Flatter),
    StaticTree(((0,), (2,), (0, 0)), Flatter),
    Chain(2, law=Flatter),
]


@pytest.mark.parametrize("policy", TREES, ids=str)
@pytest.mark.parametrize("verifier", [RecursiveRejection(), Traversal(), SampleAndMatch(), Greedy()], ids=str)
def test_shipped_policies_draw_by_it_and_verifiers_keep_the_targets_law(policy, verifier):
    drafter = toy_drafter(policy, ToyModel(3, seed=2))
    assert_proposal_law(policy, drafter)
    assert_lossless(
        policy,
        verifier,
        target=ToyModel(3, seed=1),
        drafter=drafter,
        temperature=0.0 if verifier.greedy else 1.0,
        rounds=1,
    )


def test_every_check_of_a_policy_passes():
    check_strategy(FixedTree(1, 2, law=Flatter), models=1)


def test_the_checks_of_a_verifier_try_the_laws_that_it_names():
    class OneRow(RecursiveRejection):
        laws = frozenset({Flatter})

    names = {name for name, _ in verifier_checks(OneRow())}
    assert "lossless-Flatter" in names
    for name, check in verifier_checks(OneRow()):
        if name in ("lossless-Flatter", "wide-Flatter", "bad-input"):
            check(1)


def test_a_law_that_is_not_as_it_says_is_caught():
    policy = FixedTree(1, 2, law=DeclaredOtherwise)
    drafter = toy_drafter(policy, ToyModel(3, seed=2))
    with pytest.raises(AssertionError):
        assert_proposal_law(policy, drafter)
    with pytest.raises(AssertionError):
        assert_lossless(policy, RecursiveRejection(), target=ToyModel(3, seed=1), drafter=drafter)


def test_a_verifier_of_one_law_refuses_it_and_names_those_that_fit():
    with pytest.raises(IncompatibleStrategy, match=r"the law Flatter of FixedTree; .*recursive-rejection"):
        check_strategy_fits(TREES[0], OptimalIID())


def test_a_policy_that_draws_by_two_laws_alone_refuses_it():
    with pytest.raises(InvalidInput, match="cannot be drawn by Flatter"):
        DySpec(4, law=Flatter)


def test_a_law_without_draw_is_refused_where_it_is_to_be_drawn():
    class Unknown(Proposal):
        def conditional(self, k: int, earlier: Sequence[int]) -> Tensor:
            raise NotImplementedError

    with pytest.raises(InvalidInput, match="Unknown does not say how its children are drawn"):
        draw_children(Unknown, torch.ones(1, 2) / 2, count=1, rng=CounterRandomness.seeded(0))


def test_shipped_laws_are_final():
    with pytest.raises(TypeError, match="derived from WithoutReplacement"):
        type("Mine", (WithoutReplacement,), {})


def test_it_goes_by_its_place_where_a_name_is_asked_for():
    policy = create("policies", "fixed-tree", {"depth": 1, "law": f"{__name__}:Flatter"})
    assert policy.laws == {Flatter}
    with pytest.raises(InvalidInput, match="is no proposal law; name a class derived from Proposal"):
        create("policies", "fixed-tree", {"law": f"{__name__}:TREES"})
