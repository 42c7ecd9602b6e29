"""`draftwood check`: what is right passes, what is wrong is explained, and what is no strategy is refused."""

import gc
import os
import signal
import time
import weakref
from typing import Any

import attrs
import pytest

from draftwood.apps.proof.built_strategy import SMALL, build
from draftwood.apps.proof.check import REMEDIES
from draftwood.apps.terminal.interrupts import never_dropped
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.typical import Typical
from draftwood.testing import ToyBackend, ToyModel
from draftwood.testing.checks.strategy_checks import checks_for
from draftwood.testing.models.small_strategies import small_policies, small_verifiers
from tests.framework.third_party import TargetAgain

MINE = '''
import attrs

from draftwood import (
    Deterministic, InvalidInput, TreeBuilder, TreePolicy, Verifier, WithReplacement, draw_children
)
from draftwood.protocols.compatibility import registered_laws
from draftwood.testing import ToyBackend, ToyModel
from tests.framework.third_party import TargetAgain

COUNT = 3


@attrs.frozen
class Star(TreePolicy):
    """The most likely tokens below the root."""

    branching: int = 8
    wide: bool = False
    laws = frozenset({Deterministic})

    def grow(self, root, rng):
        tree = TreeBuilder(root)
        (drawn,) = draw_children(Deterministic, (yield tree.request([0])), count=self.branching, rng=rng)
        tree.add_children(0, drawn.tokens, drawn.proposal)
        return tree.finish()


@attrs.frozen
class Sized(Star):
    nodes: int = attrs.field(kw_only=True)


class Biased(TargetAgain):
    laws = frozenset({WithReplacement})
    branches = False


class NoLaws(Verifier):
    laws = ()

    def verify(self, tree, target_probs, rng):
        raise InvalidInput("never")


class Forgetful(ToyBackend):
    """Commits one node fewer than it should."""

    def commit(self, paths):
        super().commit([path[:-1] for path in paths])


class Plain:
    pass


def forgetful(vocab_size: int = 5):
    return Forgetful(ToyModel(vocab_size))


def nothing():
    return None


star = Star(2)
'''


SERVED = """
from draftwood import StateBackend
from draftwood.testing import ToyBackend, ToyModel

toy = ToyBackend(ToyModel(5))


class Nameless(StateBackend):
    vocab_size, max_length, weight_bytes = 5, None, 0
    lengths = ()

    def prefill(self, rows): ...

    def release(self, rows=None): ...

    def extend(self, tokens, parents, counts=None): ...

    def commit(self, paths): ...


def logits_after(tokens):
    return ToyModel(5).logits(tokens)


def warmer(tokens):
    return ToyModel(5).logits(tokens) / 2
"""
WRONG = """
import time

import attrs

from draftwood import TreeBuilder, TreePolicy, Verifier, WithoutReplacement, draw_children


@attrs.frozen
class Drops(TreePolicy):
    laws = frozenset({WithoutReplacement})

    def grow(self, root, rng):
        tree = TreeBuilder(root)
        (drawn,) = draw_children(WithoutReplacement, (yield tree.request([0])), count=2, rng=rng)
        if drawn.tokens and drawn.tokens[0] != 1:
            tree.add_children(0, drawn.tokens, drawn.proposal)
        return tree.finish()


class Raises(Verifier):
    laws = frozenset({WithoutReplacement})
    lossless = True

    def verify(self, tree, target_probs, rng):
        # line 27 of this module
        raise RuntimeError("boom")


@attrs.frozen
class DropsAndForgets(Drops):
    branches = False


@attrs.frozen
class Slow(Drops):
    def grow(self, root, rng):
        time.sleep(0.2)
        return (yield from super().grow(root, rng))
"""


@pytest.fixture
def mine(own_module):
    return own_module(MINE)


def test_a_policy_of_ones_own_passes_on_small_trees(draftwood, mine):
    result = draftwood("check", "mine:Star", "--models", 2)
    assert result.exit_code == 0, result.output
    assert "Star(branching=2, wide=False), a tree policy: 12 checks." in result.stdout
    assert "All 12 checks passed." in result.stdout


def test_options_reach_the_class_as_what_they_are(mine):
    policy = build("mine:Star", {"branching": "4", "wide": "yes"})
    assert (policy.branching, policy.wide) == (4, True)
    assert build("mine:forgetful", {"vocab_size": "7"}).vocab_size == 7
    assert build("mine:star", {}).branching == 2


def test_sizes_not_given_are_cut_down_and_small_ones_left(mine):
    assert build("draftwood.strategies.policies.dyspec:DySpec", {}) == DySpec(SMALL["budget"])
    assert build("draftwood.strategies.policies.dyspec:DySpec", {"budget": "1"}) == DySpec(1)
    assert build("draftwood.strategies.policies.fixed_tree:FixedTree", {}).depth == SMALL["depth"]


def test_a_mistake_is_explained_and_the_exit_code_is_1(draftwood, mine):
    result = draftwood("check", "mine:Biased", "--models", 10)
    assert result.exit_code == 1
    for part in (
        "FAILS     lossless-WithReplacement",
        "ok        declaration",
        "The emitted tokens have the target's law, or the declared one, on trees of several small shapes.",
        "is biased on trees drawn by WithReplacement: tokens (",
        "it draws from the target instead of the residual max(target - draft, 0)",
        "checks failed.",
    ):
        assert part in result.stdout, part


def test_each_cause_is_told_once_and_the_first_one_first(draftwood, mine):
    (mine / "wrong.py").write_text(WRONG)
    drops = draftwood("check", "wrong:Drops", "--models", 5).stdout
    told = drops.partition("\n\n")[2]
    assert told.startswith("proposal-law: Law P: ")
    assert told.count("Usual causes") == 1
    assert "\nMost likely for the same cause: wide, arithmetic, lossless, as-used.\n" in told
    assert "fails the check" not in drops
    raises = draftwood("check", "wrong:Raises", "--models", 2).stdout
    told = raises.partition("\n\n")[2]
    assert told.count("boom") == 1
    assert "\nMend this first: RuntimeError in wrong.py, line 27.\n" in told
    assert "rounds" in told.partition("Most likely for the same cause: ")[2]
    assert "12 of 13 checks failed." in raises


def test_two_causes_are_both_told(draftwood, mine):
    (mine / "wrong.py").write_text(WRONG)
    told = draftwood("check", "wrong:DropsAndForgets", "--models", 5).stdout.partition("\n\n")[2]
    assert "proposal-law: Law P: " in told
    assert "\nchain: " in told


@pytest.mark.posix
def test_ctrl_c_says_no_more_than_that_it_stopped(mine, start):
    (mine / "wrong.py").write_text(WRONG)
    process = start("check", "wrong:Slow", cwd=mine)
    assert process.stdout.readline().startswith("Slow()")
    assert "declaration" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, errors = process.stdout.read(), process.stderr.read()
    assert (process.wait(timeout=300), rest, errors) == (130, "", "Stopped.\n")


class Ends:
    """Its end interrupts the process, once."""

    def __del__(self):
        interrupt_once()


def interrupt_once(*_):
    if not sent:
        sent.append(signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # a place where Python looks for signals


sent = list[Any]()


@pytest.mark.posix
@pytest.mark.parametrize("dropped_by", ["a collection", "a weak reference", "an end"])
def test_ctrl_c_is_heard_where_python_drops_it(capfd, dropped_by):
    def wait_for_ctrl_c():
        with never_dropped():
            if dropped_by == "a collection":
                gc.callbacks.append(interrupt_once)
                gc.collect()
            elif dropped_by == "a weak reference":
                subject = set[int]()
                reference = weakref.ref(subject, interrupt_once)
                del subject
                assert reference() is None
            else:
                Ends()
            time.sleep(30)

    sent.clear()
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent may have it ignored
    try:
        with pytest.raises(KeyboardInterrupt):
            wait_for_ctrl_c()
    finally:
        if interrupt_once in gc.callbacks:
            gc.callbacks.remove(interrupt_once)
        signal.signal(signal.SIGINT, before)
    assert sent
    assert "ignored" not in capfd.readouterr().err


def test_a_backends_mistake_is_explained_by_law_s(draftwood, mine):
    result = draftwood("check", "mine:forgetful", "--models", 2)
    assert result.exit_code == 1
    assert "Forgetful, a state backend" in result.stdout or "Forgetful(" in result.stdout
    assert "FAILS     rounds-of-trees" in result.stdout
    assert "Law S in the docstring of StateBackend" in result.stdout


def test_a_backend_is_held_to_an_oracle_of_ones_own(draftwood, refused, mine):
    (mine / "served.py").write_text(SERVED)
    right = draftwood("check", "served:toy", "--oracle", "served:logits_after", "--models", 1)
    assert "1 of 14 checks failed." in right.stdout  # a toy checks no call
    assert "goes through; it should raise InvalidTree" in right.stdout
    warm = draftwood("check", "served:toy", "--oracle", "served:warmer", "--models", 1).stdout
    told = warm.partition("\n\n")[2]
    assert told.startswith("one-tree: ")
    assert "the logits are 2 times the right ones." in told
    assert told.count("Law S in the docstring") == 1
    assert "of 14 checks failed." in told
    for arguments, message in (
        (("served:toy", "--oracle", "served:no"), "has no 'no'"),
        (
            ("served:toy", "--oracle", "served:ToyBackend"),
            "'served:ToyBackend' is no function; name one that",
        ),
        (("mine:star", "--oracle", "served:warmer"), "Star is no backend and no drafter"),
        (("served:Nameless",), "Nameless names no model to compare it with; give oracle=, a function from"),
    ):
        assert message in refused("check", *arguments)


def test_an_expected_failure_must_fail(draftwood, mine):
    arguments = ("check", "mine:star", "--models", 1, "--expect")
    passes = draftwood(*arguments, "copies=it cannot be copied")
    assert passes.exit_code == 1
    assert "expected to fail (it cannot be copied) and passes" in passes.stdout
    fails = draftwood("check", "mine:NoLaws", "--expect", "declaration=unfinished", "--models", 1)
    assert "expected  declaration: unfinished" in fails.stdout
    assert "FAILS     bad-input" in fails.stdout


def test_a_tree_too_large_to_visit_is_no_verdict(draftwood, mine, monkeypatch):
    from draftwood.testing.checks import policy_checks
    from draftwood.testing.proofs.enumerator import BudgetExceeded

    def too_large(*arguments, **options):
        raise BudgetExceeded("20 outcomes were visited.")

    monkeypatch.setattr(policy_checks, "assert_proposal_law", too_large)
    result = draftwood("check", "mine:star", "--models", 1)
    assert result.exit_code == 1
    assert "That is no verdict: its tree has too many outcomes" in " ".join(result.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mine",), "'mine' is not of the form package.module:Class"),
        (("mien:Star",), "There is no module 'mien', neither installed nor in "),
        (("mine.policies:Star",), "There is no module 'mine.policies'"),
        (("mine.py:Star",), "'mine.py' is a file; name the module as Python imports it, such as mine:Class."),
        (("mine:Sta",), "mine.py) has no 'Sta'; did you mean 'Star'?"),
        (("mine:Plain",), "'Plain' is derived from none of TreePolicy, Verifier, Drafter, StateBackend"),
        (("mine:nothing",), "'nothing()' is a NoneType, derived from none of TreePolicy"),
        (("mine:COUNT",), "'COUNT' is a int; name a class, or a function"),
        (("mine:TreePolicy",), "'TreePolicy' is a protocol itself; name a class"),
        (("mine:Sized",), "'Sized' needs the option 'nodes'; give -o nodes=VALUE, or name a function"),
        (("mine:Star", "-o", "branchin=3"), "has no option 'branchin'; did you mean 'branching'?"),
        (("mine:Star", "-o", "branching=three"), "branching is 'three'; give an integer."),
        (("mine:NoLaws", "-o", "size=3"), "'NoLaws' has no option 'size'"),
        (
            ("mine:star", "-o", "branching=3"),
            "'star' is built already and takes no option 'branching'; name its class.",
        ),
        (("mine:star", "--expect", "copy=why"), "There is no check 'copy' here; did you mean 'copies'?"),
        (("mine:star", "--expect", "copies"), "The expected failure 'copies' has no reason; write"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_checked_is_refused(refused, mine, arguments, message):
    assert message in refused("check", *arguments)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import no_such_thing",
            "'broken' needs the module 'no_such_thing', which is not there; install it.",
        ),
        ("1 / 0", "'broken' cannot be imported (ZeroDivisionError: division by zero); fix it first."),
        ("def f(:", "'broken' cannot be imported (SyntaxError: invalid syntax"),
        ("raise SystemExit(3)", "'broken' cannot be imported (SystemExit: 3); fix it first."),
    ],
)
def test_a_module_that_does_not_import_says_why(refused, mine, code, message):
    (mine / "broken.py").write_text(code)
    assert message in refused("check", "broken:Star")


def test_every_check_has_a_demand_and_a_remedy():
    drafter = PromptLookup(13)
    registered = [named.strategy for named in (*small_policies(), *small_verifiers())]
    own = (attrs.evolve(RecursiveRejection()), TargetAgain(), Typical(), drafter)
    for strategy in (*registered, *own):
        for name, one in checks_for(strategy):
            assert one.demand.endswith("."), name
            assert name in REMEDIES or name.partition("-")[0] in REMEDIES, name
    backend = ToyBackend(ToyModel(5))
    assert all(one.demand.endswith(".") for _, one in checks_for(backend))
