"""Faults that only larger settings show: proofs of small trees pass, samples of decoding tell them."""

from __future__ import annotations

import attrs
import pytest
from typer.testing import CliRunner

from draftwood import (
    LearningPolicy,
    TreeBuilder,
    TreePolicy,
    WithoutReplacement,
    WithReplacement,
    create,
    draw_children,
)
from draftwood.apps.cli import app
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import LawBroken, ToyBackend
from draftwood.testing.proofs.decoded_laws import assert_decoded_laws
from tests.framework.late_faults import LATE

REJECTION = RecursiveRejection()


@attrs.frozen
class DropsUnlikely(TreePolicy):
    """A chain that drops an unlikely token for its own sake, from some depth or vocabulary on."""

    length: int = 8
    depth: int = 4
    vocabulary: int = 0
    laws = frozenset({WithReplacement})

    def grow(self, root, rng):
        tree, node = TreeBuilder(root), 0
        for depth in range(self.length):
            probs = yield tree.request([node])
            (drawn,) = draw_children(WithReplacement, probs, count=1, rng=rng)
            wrong = depth >= self.depth and probs.shape[-1] > self.vocabulary
            if not drawn.tokens or (wrong and float(probs[0, drawn.tokens[0]]) < 0.3 * float(probs.max())):
                break
            (node,) = tree.add_children(node, drawn.tokens, drawn.proposal)
        return tree.finish()


@attrs.frozen
class ManySiblings(TreePolicy):
    """Children of the root, of which the fourth and later ones are dropped where they are unlikely."""

    branching: int = 6
    adaptive = True
    laws = frozenset({WithoutReplacement})

    def grow(self, root, rng):
        tree = TreeBuilder(root)
        probs = yield tree.request([0])
        (drawn,) = draw_children(WithoutReplacement, probs, count=self.branching, rng=rng)
        kept = len(drawn.tokens)
        while kept > 3 and float(probs[0, drawn.tokens[kept - 1]]) < 0.05:
            kept -= 1
        if kept:
            tree.add_children(0, drawn.tokens[:kept], drawn.proposal)
        return tree.finish()


@attrs.frozen
class AfterManyRounds(LearningPolicy[int]):
    """A chain that goes wrong in long texts."""

    length: int = 4
    rounds: int = 40
    laws = frozenset({WithReplacement})

    def first_state(self):
        return 0

    def grow(self, root, rng, state=None):
        late = (state or 0) > self.rounds
        return (yield from DropsUnlikely(self.length, depth=0 if late else self.length).grow(root, rng))

    def observe(self, state, outcome, tree):
        return state + 1


@attrs.frozen
class AcceptsDeepNodes(RecursiveRejection):
    """Accepts what lies below depth 4 without a test."""

    def verify(self, tree, target_probs, rng):
        outcome = super().verify(tree, target_probs, rng)
        if len(outcome.path) < 5 or not tree.children(outcome.path[-1]):
            return outcome
        path = [*outcome.path, tree.children(outcome.path[-1])[0]]
        return type(outcome).of(tree, path, extra=rng.choose(target_probs[path[-1]]), bonus=True)


@pytest.mark.parametrize(
    ("policy", "verifier", "law"),
    [
        (DropsUnlikely(), REJECTION, "P"),
        (DropsUnlikely(depth=0, vocabulary=100), REJECTION, "P"),
        (ManySiblings(), REJECTION, "P"),
        (AfterManyRounds(), REJECTION, "P"),
        (Chain(10), AcceptsDeepNodes(), "V"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_a_fault_of_larger_settings_is_told(policy, verifier, law) -> None:
    with pytest.raises(LawBroken, match=f"breaks law {law}"):
        assert_decoded_laws(policy, verifier)


@pytest.mark.parametrize(
    ("policy", "verifier"),
    [
        (DropsUnlikely(depth=8), REJECTION),
        (LayeredDySpec(24), create("verifiers", "traversal")),
        (AfterManyRounds(rounds=10**6), create("verifiers", "class-ordered-rejection")),
    ],
    ids=lambda part: type(part).__name__,
)
def test_what_is_right_passes_and_says_what_was_seen(policy, verifier) -> None:
    assert "biases of" in assert_decoded_laws(policy, verifier)


SHORT = ("by temperature: a flat draft", "by number of siblings, the verifier", "by budget")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.thorough) for name in LATE]
)
def test_a_fault_beyond_small_settings_is_told_whatever_it_depends_on(name) -> None:
    with pytest.raises(LawBroken, match="breaks law"):
        assert_decoded_laws(*LATE[name])


def test_a_fault_of_the_decoder_before_the_verifier_is_told(monkeypatch) -> None:
    # What the verifier is given is then another distribution than the target's, and its work is right.
    as_it_was = ToyBackend.extend
    monkeypatch.setattr(ToyBackend, "extend", lambda *given: 1.5 * as_it_was(*given))
    with pytest.raises(LawBroken, match="breaks law V"):
        assert_decoded_laws(Chain(2), REJECTION)


SOURCE = """
import attrs
from draftwood import TreeBuilder, TreePolicy, WithReplacement, draw_children


@attrs.frozen
class Late(TreePolicy):
    length: int = 8
    trunk: int = 4
    laws = frozenset({WithReplacement})

    def grow(self, root, rng):
        tree, node = TreeBuilder(root), 0
        if root == 12345:
            return tree.finish()
        for depth in range(self.length):
            probs = yield tree.request([node])
            (drawn,) = draw_children(WithReplacement, probs, count=1, rng=rng)
            if not drawn.tokens or (depth >= self.trunk and float(probs[0, drawn.tokens[0]]) < 0.3):
                break
            (node,) = tree.add_children(node, drawn.tokens, drawn.proposal)
        return tree.finish()
"""


def test_check_says_what_it_made_smaller_and_looks_at_what_will_be_used(tmp_path, monkeypatch) -> None:
    (tmp_path / "late_policy.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["check", "late_policy:Late"])
    assert result.exit_code == 1
    assert "length 2 for 8" in result.output
    assert "FAILS     as-used" in result.output
    assert "ok        proposal-law" in result.output
    # A line that never ran has no verdict.
    assert "No verdict on line(s) 15 of Late" in result.output
