"""The proof of law V: both ways of making it agree, and a failure says where and why."""

import signal
import time

import attrs
import pytest

from draftwood import InvalidInput, LearningPolicy, Outcome
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.testing import ToyModel, assert_lossless, drawn_trees, joint_law, largest_error, target_law
from draftwood.testing.diagnosis.tree_text import distribution_as_text
from draftwood.testing.models.small_strategies import toy_drafter
from draftwood.testing.proofs import checked_verifier
from tests.framework.third_party import DraftInstead, FirstChildren, TargetAgain

TARGET, DRAFT = ToyModel(2, seed=1), ToyModel(2, seed=2)
TREE = FixedTree(1, 2)


def case(policy=TREE, draft=DRAFT, target=TARGET):
    return {"target": target, "drafter": toy_drafter(policy, draft)}


@pytest.mark.parametrize("verifier", [RecursiveRejection(), FirstChildren()], ids=["right", "third party"])
@pytest.mark.parametrize("policy", [Chain(2), TREE], ids=["chain", "tree"])
def test_one_round_and_several_prove_the_same(policy, verifier):
    laws = [joint_law(policy, verifier, rounds=rounds, **case(policy)) for rounds in (None, 1)]
    expected = target_law(TARGET)
    assert all(law.error(expected) < 1e-14 for law in laws)
    assert laws[0].expected_tokens == pytest.approx(laws[1].expected_tokens, abs=1e-12)
    assert sum(expected.values()) == pytest.approx(1)


@pytest.mark.parametrize("rounds", [None, 1])
def test_the_size_of_a_bias_is_the_worst_sequences(rounds):
    error = largest_error(TREE, TargetAgain(), rounds=rounds, **case())
    # One child: x comes with min(T, D)(x) and T(x) times the chance of a rejection, which is too often.
    target, draft = TARGET.probs([0]), DRAFT.probs([0])
    kept = target.minimum(draft)
    first = kept + (1 - kept.sum()) * target
    assert error > 0.01
    if rounds == 1:
        one = joint_law(TREE, TargetAgain(), rounds=1, tokens=1, **case())
        assert [one.probabilities[token,] for token in range(2)] == pytest.approx(first.tolist(), abs=1e-12)
    with pytest.raises(AssertionError, match=f"off by {error:.2g}"):
        assert_lossless(TREE, TargetAgain(), rounds=rounds, **case())


def test_a_failure_draws_the_tree_with_both_laws():
    with pytest.raises(AssertionError) as raised:
        assert_lossless(TREE, TargetAgain(), rounds=1, tokens=1, **case())
    message = str(raised.value)
    draft, target = (distribution_as_text(model.probs([0])) for model in (DRAFT, TARGET))
    assert "TargetAgain() is biased: tokens (" in message
    assert "The round after (0,) is biased. Of 2 trees" in message
    assert f"* 0: token 0\n     target {target}\n" in message
    assert f"drawn from {draft} (WithoutReplacement, child 0)" in message


@attrs.frozen
class Late(RecursiveRejection):
    """Right after the prompt, and wrong where token 1 is the root."""

    def verify(self, tree, target_probs, rng):
        right = RecursiveRejection() if int(tree.tokens[0]) == 0 else TargetAgain()
        return right.verify(tree, target_probs, rng)


def test_a_bias_of_a_later_round_is_found_there():
    assert_lossless(Chain(1), Late(), rounds=1, **case(Chain(1)))
    with pytest.raises(AssertionError, match=r"The round after \(0, .*1\) is biased"):
        assert_lossless(Chain(1), Late(), **case(Chain(1)))


class Raises(FirstChildren):
    def verify(self, tree, target_probs, rng):
        return super().verify(tree, target_probs[:1], rng)


class Endless(FirstChildren):
    def verify(self, tree, target_probs, rng):
        while rng.accept(0.5):
            pass
        return super().verify(tree, target_probs, rng)


class Sleeps(FirstChildren):
    def verify(self, tree, target_probs, rng):
        time.sleep(5)


class Rootless(FirstChildren):
    def verify(self, tree, target_probs, rng):
        outcome = super().verify(tree, target_probs, rng)
        return Outcome(outcome.path[1:], outcome.tokens[1:], outcome.extra, outcome.bonus, outcome.drafted)


@pytest.mark.posix
def test_a_machine_that_stood_still_is_no_endless_run():
    def rings(times):
        with checked_verifier.time_limit(60):
            for _ in range(times):
                signal.raise_signal(signal.SIGALRM)

    rings(1)  # all that a process hears that was stopped for long
    rings(checked_verifier.PARTS)  # others compute meanwhile
    with pytest.raises(TimeoutError, match="60 seconds"):
        rings(checked_verifier.PARTS * checked_verifier.PATIENCE)


@pytest.mark.parametrize("rounds", [None, 1])
@pytest.mark.parametrize(
    ("verifier", "message"),
    [
        (Raises(), r"Raises\(\) raises \(IndexError: "),
        (Endless(), r"Endless\(\) does not end \(EndlessRun: One run asked for 10000 random outcomes"),
        (Sleeps(), r"Sleeps\(\) does not end \(TimeoutError"),
        (DraftInstead(), r"though token \d has target probability 0 after node \d"),
    ],
    ids=["raises", "endless", "sleeps", "forbidden"],
)
def test_what_no_verifier_may_do_is_shown_with_its_tree(verifier, message, rounds, monkeypatch):
    if isinstance(verifier, Sleeps):  # the others end by themselves, however long the machine takes
        monkeypatch.setattr(checked_verifier, "SECONDS", 0.05)
    target = ToyModel(3, seed=5, sparsity=0.6)
    options = case(target=target, draft=ToyModel(3, seed=2))
    with pytest.raises(AssertionError, match=rf"{message}[\s\S]* on the tree\n  0: token 0\n"):
        assert_lossless(TREE, verifier, rounds=rounds, **options)


def test_an_outcome_without_the_root_is_malformed():
    with pytest.raises(AssertionError, match=r"accepts \(.*\), which"):
        assert_lossless(TREE, Rootless(), rounds=1, **case())


def test_temperature_0_is_proved_too():
    assert_lossless(TREE, Greedy(), temperature=0.0, rounds=1, **case())
    assert largest_error(TREE, Greedy(), temperature=1.0, rounds=1, **case()) > 0.1


@attrs.frozen
class Learner(LearningPolicy):
    """Drafts one token more after every round in which all were accepted."""

    laws = Chain(1).laws

    def first_state(self):
        return 1

    def grow(self, root, rng, state=None):
        return (yield from Chain(state or 1).grow(root, rng))

    def observe(self, state, outcome, tree):
        return state + int(outcome.accepted == outcome.drafted)


def test_a_policy_that_learns_starts_afresh_and_keeps_what_it_learnt():
    policy = Learner()
    joint = assert_lossless(policy, RecursiveRejection(), tokens=4, **case(Chain(1)))
    short = joint_law(Chain(1), RecursiveRejection(), tokens=4, **case(Chain(1)))
    assert joint.expected_tokens == pytest.approx(short.expected_tokens)
    assert joint.runs != short.runs


@attrs.frozen(eq=False)
class Apart:
    """A state that is only equal to itself."""

    length: int = 1


class Forgetful(Learner):
    """Does not see that two pasts have taught it the same."""

    def first_state(self):
        return Apart()

    def grow(self, root, rng, state=None):
        return super().grow(root, rng, state.length if state else 1)

    def observe(self, state, outcome, tree):
        return Apart(super().observe(state.length, outcome, tree))


def test_pasts_that_taught_the_same_are_visited_once():
    # A biased verifier, so that the law tells which chains were drafted.
    options = {"tokens": 4, **case(Chain(1))}
    once = joint_law(Learner(), TargetAgain(), **options)
    apart = joint_law(Forgetful(), TargetAgain(), **options)
    assert once.error(apart.probabilities) < 1e-15
    assert once.runs < apart.runs


@pytest.mark.parametrize("rounds", [None, 1])
def test_the_temperature_is_the_targets_and_the_drafts(rounds):
    options = {"tokens": 2, "rounds": rounds, "temperature": 0.5, **case()}
    assert largest_error(TREE, RecursiveRejection(), **options) < 1e-14
    assert largest_error(TREE, TargetAgain(), **options) > 1e-3


def test_other_numbers_of_rounds_are_refused():
    with pytest.raises(InvalidInput, match="rounds is 2; give 1, or None"):
        joint_law(TREE, RecursiveRejection(), rounds=2, **case())


def test_trees_drawn_before_give_the_law_of_trees_drawn_anew():
    trees = drawn_trees(TREE, case()["drafter"])
    with_trees = joint_law(TREE, RecursiveRejection(), rounds=1, trees=trees, **case())
    assert with_trees == joint_law(TREE, RecursiveRejection(), rounds=1, **case())
    half = joint_law(TREE, RecursiveRejection(), rounds=1, trees=trees[:1], **case())
    assert sum(half.probabilities.values()) == pytest.approx(trees[0].weight)
    with pytest.raises(InvalidInput, match="trees are trees of one round; give rounds=1"):
        joint_law(TREE, RecursiveRejection(), trees=trees, **case())


class Waits(RecursiveRejection):
    """Waits for the processor, as on a busy machine, and then judges."""

    def verify(self, tree, target_probs, rng):
        time.sleep(0.3)
        return super().verify(tree, target_probs, rng)


def test_a_verifier_that_waits_for_the_processor_is_no_endless_one(monkeypatch):
    monkeypatch.setattr(checked_verifier, "SECONDS", 0.1)
    assert_lossless(Chain(1), Waits(), rounds=1, tokens=1, **case())
