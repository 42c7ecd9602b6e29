"""Verifiers that declare a law of their own: cascades and contrastive decoding, right and wrong."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
import torch

from draftwood import (
    InvalidDistribution,
    Outcome,
    Verifier,
    WithoutReplacement,
    WithReplacement,
)
from draftwood.drafters import ModelDrafter
from draftwood.policies import Chain, FixedTree
from draftwood.testing import (
    FeatureToyBackend,
    LawBroken,
    ToyBackend,
    ToyModel,
    assert_lossless,
    check_strategy,
    checks_for,
    joint_law,
    kept_law,
    target_law,
)
from draftwood.testing.checks.verifier_checks import verifier_checks
from draftwood.testing.proofs.decoded_laws import assert_decoded_laws
from draftwood.verifiers import Typical
from tests.thorough import marks_unless

TARGET, DRAFT = ToyModel(3, seed=5), ToyModel(3, seed=9)


@attrs.frozen
class OwnLaw(Verifier):
    """Recursive rejection against the declared law of every node.

    At a leaf the draft's distribution is not known, so an accepted leaf is the last token of the round.
    """

    laws = frozenset({WithReplacement, WithoutReplacement})
    lossless = False
    declares_law = True

    def residual(self, law, drawn):
        left = (law - drawn).clamp(min=0)
        return left / left.sum() if left.sum() > 0 else law

    def judged_law(self, target_probs, draft_probs):
        return self.declared_law(target_probs, draft_probs)

    def verify(self, tree, target_probs, rng):
        path = [0]
        while True:
            node = path[-1]
            if not tree.children(node):  # nothing was drafted
                return Outcome.of(tree, path, extra=rng.choose(target_probs[node]), bonus=True)
            proposal = tree.proposals[node]
            law = self.judged_law(target_probs[node].double(), proposal.marginal(0).double())
            earlier: list[Any] = []
            for child in tree.children(node):
                token, drawn = int(tree.tokens[child]), proposal.conditional(len(earlier), earlier).double()
                if not float(drawn[token]) > 0:
                    raise InvalidDistribution(f"Token {token} was drawn with probability 0; mend the policy.")
                if rng.accept(min(1.0, float(law[token]) / float(drawn[token]))):
                    break
                law = self.residual(law, drawn)
                earlier.append(token)
            else:
                return Outcome.of(tree, path, extra=rng.choose(law), bonus=False)
            if not tree.children(child):
                return Outcome.of(tree, path, extra=token, bonus=False)
            path.append(child)


class Mixture(OwnLaw):
    """A cascade by interpolation."""

    def declared_law(self, target_probs, draft_probs):
        return 0.7 * target_probs + 0.3 * draft_probs


class Deferral(OwnLaw):
    """A cascade that defers to the target where the draft is not sure."""

    def declared_law(self, target_probs, draft_probs):
        return draft_probs if float(draft_probs.max()) > 0.6 else target_probs


class Contrastive(OwnLaw):
    """Target against amateur, among the tokens that the target finds plausible."""

    def declared_law(self, target_probs, draft_probs):
        plausible = target_probs >= 0.1 * target_probs.max()
        score = target_probs.clamp(min=1e-30) ** 1.5 / draft_probs.clamp(min=1e-3) ** 0.5
        score = torch.where(plausible, score, 0.0)
        return score / score.sum()


class NoResidual(Mixture):
    """Wrong: after a rejection it draws from the law itself."""

    def residual(self, law, drawn):
        return law


class OtherWeight(Mixture):
    """Wrong: it judges by another mixture than it declares."""

    def judged_law(self, target_probs, draft_probs):
        return 0.6 * target_probs + 0.4 * draft_probs


class BonusOfTheTarget(Mixture):
    """Wrong: the token after an accepted leaf is drawn from the target alone."""

    def verify(self, tree, target_probs, rng):
        outcome = super().verify(tree, target_probs, rng)
        node = outcome.path[-1]
        for child in tree.children(node):
            if int(tree.tokens[child]) == outcome.extra and not tree.children(child):
                extra = rng.choose(target_probs[child])
                return Outcome.of(tree, [*outcome.path, child], extra=extra, bonus=True)
        return outcome


class ForgetsInDeepTrees(Mixture):
    """Wrong in trees deeper than those that are enumerated."""

    def verify(self, tree, target_probs, rng):
        judge = NoResidual() if tree.depth > 4 else Mixture()
        return judge.verify(tree, target_probs, rng)


class NoLaw(Mixture):
    """Declares what is no distribution."""

    def declared_law(self, target_probs, draft_probs):
        return target_probs + draft_probs


class Both(Mixture):
    lossless = True


RIGHT = [Mixture(), Deferral(), Contrastive()]


def case(**changes: Any) -> Any:
    return {"target": TARGET, "drafter": ModelDrafter(ToyBackend(DRAFT)), **changes}


@pytest.mark.parametrize("verifier", RIGHT, ids=lambda verifier: type(verifier).__name__)
@pytest.mark.parametrize("policy", [Chain(2), FixedTree(2, 2)], ids=["chain", "tree"])
@pytest.mark.parametrize("rounds", [None, 1])
def test_the_declared_law_comes_out(policy: Any, verifier: Any, rounds: Any) -> None:
    law = assert_lossless(policy, verifier, rounds=rounds, temperature=0.8, **case())
    declared = kept_law(verifier, temperature=0.8, **case())
    assert law.error(declared) < 1e-12
    assert law.error(target_law(TARGET, temperature=0.8)) > 1e-2
    assert law.expected_tokens > 1


@pytest.mark.parametrize(
    "verifier",
    [pytest.param(one, marks=marks_unless(one == Mixture()), id=type(one).__name__) for one in RIGHT],
)
def test_all_checks_hold_it_to_its_law(verifier: Any) -> None:
    named = dict(checks_for(verifier, models=1))
    assert "declared-WithReplacement" in named
    assert "off by up to" in str(named["lossiness-WithReplacement"]())  # from the target's
    check_strategy(verifier, models=1)


@pytest.mark.parametrize(
    ("verifier", "check", "words"),
    [
        (NoResidual(), "declared-WithReplacement", "is biased"),
        (OtherWeight(), "declared-WithoutReplacement", "is biased"),
        (BonusOfTheTarget(), "declared-WithReplacement", "is biased"),
        (NoLaw(), "declared-WithReplacement", "which is no distribution over 3 tokens"),
        (Both(), "declaration", "set lossless to False"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, OwnLaw) else "",
)
def test_another_law_is_told(verifier: Any, check: str, words: str) -> None:
    named = dict(checks_for(verifier, models=0))
    with pytest.raises(LawBroken, match=words):
        named[check]()


def test_a_declared_law_is_looked_at_as_used() -> None:
    assert "as-used" in dict(verifier_checks(Mixture(), Mixture()))
    with pytest.raises(LawBroken, match="breaks law V: of the written tokens"):
        assert_decoded_laws(Chain(8), ForgetsInDeepTrees())


@pytest.mark.thorough
@pytest.mark.parametrize("verifier", RIGHT, ids=lambda verifier: type(verifier).__name__)
def test_a_declared_law_holds_as_used(verifier: Any) -> None:
    assert "biases of" in assert_decoded_laws(FixedTree(2, 2), verifier)


def test_a_declared_law_is_proved_from_the_command_line(draftwood_app: Any) -> None:
    result = draftwood_app("prove", "--policy", "chain", "--verifier", f"{__name__}:Mixture", "--models", "2")
    assert result.exit_code == 0, result.output
    assert " ok" in result.output


@pytest.fixture
def draftwood_app(monkeypatch: pytest.MonkeyPatch) -> Any:
    from draftwood_cli import app
    from typer.testing import CliRunner

    monkeypatch.setenv("COLUMNS", "120")
    return lambda *words: CliRunner().invoke(app, words)


def test_a_lossy_verifier_without_a_law_says_how_lossy_it_is() -> None:
    named = dict(checks_for(Typical(), models=0))
    assert "lossy, as declared" in str(named["lossiness-WithReplacement"]())
    off = joint_law(Chain(2), Typical(), **case()).error(kept_law(Typical(), **case()))
    assert off > 0.1


def test_a_toy_target_gives_features_of_its_text() -> None:
    target = FeatureToyBackend(TARGET, hidden_size=2, feature_layers=3)
    target.keep_features([1, 3], last=2, through=lambda states: states * 2)
    target.prefill([torch.tensor([1, 2, 0]), torch.tensor([], dtype=torch.int64)])
    several, none = target.take_features()
    expected = [torch.cat([target.states_after([1, 2, 0][:n], layer) for layer in (1, 3)]) for n in (2, 3)]
    assert torch.equal(several, 2 * torch.stack(expected))
    assert none.shape == (0, 4)
    assert [len(row) for row in target.take_features()] == [0, 0]
