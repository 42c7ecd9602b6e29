"""`check_strategy` and its pytest side: what is right passes, what is wrong is named."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from draftwood import (
    Deterministic,
    InvalidInput,
    Outcome,
    TokenTree,
    TreeBuilder,
    TreePolicy,
    WithoutReplacement,
    create,
    draw_children,
)
from draftwood.strategies.drafters.model import ModelDrafter
from draftwood.strategies.drafters.prompt_lookup import PromptLookup
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.dynatree import DynaTree
from draftwood.strategies.policies.dyspec import DySpec
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.policies.layered_dyspec import LayeredDySpec
from draftwood.strategies.verifiers.greedy import Greedy
from draftwood.testing import ToyBackend, ToyModel, sampler_models
from draftwood.testing.checks.strategy_checks import check_strategy, checks_for, parametrize_with_checks
from tests.framework.third_party import DraftInstead, FirstChildren, TargetAgain

ROOT = Path(__file__).resolve().parents[2]


def failing(strategy, models=10):
    """Names of the checks that fail, and what they say."""
    messages = {}
    for name, check in checks_for(strategy, models=models):
        try:
            check()
        except AssertionError as error:
            messages[name] = str(error)
    return messages


def test_a_third_partys_verifier_is_proved_by_one_call():
    check_strategy(FirstChildren(), models=2)


def test_a_third_partys_mistake_is_named_with_sequence_tree_and_laws():
    with pytest.raises(AssertionError) as raised:
        check_strategy(TargetAgain(), models=5)
    message = str(raised.value)
    assert "TargetAgain fails the check 'lossless-" in message
    for part in (
        "is biased on trees drawn by",
        ": tokens (",
        "and should have",
        "off by",
        "target [",
        "drawn from [",
        "* 0: token",
    ):
        assert part in message, part


def test_a_token_that_the_target_forbids_is_named_with_its_tree():
    checks = dict(checks_for(DraftInstead(), models=3))
    with pytest.raises(AssertionError, match=r"has target probability 0 after node 0, on the tree\n  0:"):
        checks["bad-input"]()


class Loops(FirstChildren):
    def verify(self, tree, target_probs, rng):
        while rng.accept(1.0):
            pass


class Forgets(FirstChildren):
    def verify(self, tree, target_probs, rng):
        target_probs[0] = 1
        return super().verify(tree, target_probs, rng)


class Elsewhere(FirstChildren):
    def verify(self, tree, target_probs, rng):
        outcome = super().verify(tree, target_probs, rng)
        return attrs.evolve(outcome, path=[*outcome.path[:-1], len(tree) - 1])


class NoLaws(FirstChildren):
    laws = frozenset[Any]()


class Wandering(FirstChildren):
    """Its chance is its own."""

    def verify(self, tree, target_probs, rng):
        extra = int(torch.multinomial(target_probs[0], 1))
        return Outcome.of(tree, [0], extra=extra, bonus=len(tree) == 1)


class Divides(FirstChildren):
    """Takes it for granted that the draft gives every token of a tree some probability."""

    def verify(self, tree, target_probs, rng):
        for child in tree.children(0):
            chance = float(tree.proposals[0].conditional(0, ())[tree.tokens[child]])
            rng.accept(float(target_probs[0, tree.tokens[child]]) / chance)
        return super().verify(tree, target_probs, rng)


class FirstStream(FirstChildren):
    """Takes all rows' chance from the first row's stream."""

    def verify_rows(self, trees, target_probs, rngs):
        return super().verify_rows(trees, target_probs, rngs[:1] * len(rngs))


class Backwards(FirstChildren):
    """Each row's outcome comes out at the other end."""

    def verify_rows(self, trees, target_probs, rngs):
        return super().verify_rows(trees, target_probs, rngs)[::-1]


class OneRowAlone(FirstChildren):
    def verify_rows(self, trees, target_probs, rngs):
        return [self.verify(trees[0], target_probs[0], rngs[0])]


class Wasteful(FirstChildren):
    def verify_rows(self, trees, target_probs, rngs):
        outcomes = super().verify_rows(trees, target_probs, rngs)
        rngs[-1].accept(0.5)
        return outcomes


@pytest.mark.parametrize(
    ("verifier", "check", "message"),
    [
        (Loops(), "bad-input", "does not end"),
        (Loops(), "lossless-WithReplacement", "does not end"),
        (Forgets(), "repeatable", "writes to the target's probabilities"),
        (Elsewhere(), "bad-input", "no path from the root|names the tokens"),
        (NoLaws(), "declaration", "laws is"),
        (Wandering(), "repeatable", "draws from torch's own generator"),
        (Divides(), "bad-input", r"raises \(ZeroDivisionError"),
        (FirstStream(), "together", "draws for row"),
        (Backwards(), "together", "if it is the only row"),
        (OneRowAlone(), "together", "gives 1 outcomes for"),
        (Wasteful(), "together", "draws for row"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_every_check_of_a_verifier_can_fail(verifier, check, message):
    checks = dict(checks_for(verifier, models=20))
    with pytest.raises(AssertionError, match=message):
        checks[check]()


def test_greedy_is_proved_at_temperature_0_alone():
    check_strategy(Greedy(), models=2)


POLICIES = [
    Chain(2),
    FixedTree(2, 2, 3),
    FixedTree(1, 2, law="per-drafter"),
    FixedTree(1, 2, law="with-replacement"),
    DySpec(3),
    LayeredDySpec(3),
    DySpec(3, "top-k"),
]


@parametrize_with_checks(POLICIES, models=5)
def test_policies(check):
    check()


@parametrize_with_checks([ModelDrafter(ToyBackend(ToyModel(13))), PromptLookup(13)])
def test_drafters(check):
    check()


@parametrize_with_checks(
    [ToyBackend(ToyModel(13))],
    expected_failures={"bad-calls-leave-the-state": "a toy, fed by the production loop alone"},
    models=5,
)
def test_backends(check):
    check()


@attrs.frozen
class OverBudget(TreePolicy):
    budget: int = 1
    laws = frozenset({Deterministic})

    def grow(self, root, rng):
        tree = TreeBuilder(root)
        (drawn,) = draw_children(Deterministic, (yield tree.request([0])), count=2, rng=rng)
        tree.add_children(0, drawn.tokens, drawn.proposal)
        return tree.finish()


@attrs.frozen
class Fickle(TreePolicy):
    """Every tree is wider than the one before."""

    grown: list[int] = attrs.field(factory=list)
    laws = frozenset({Deterministic})

    def grow(self, root, rng):
        self.grown.append(root)
        return (yield from FixedTree(1, len(self.grown), law="top-k").grow(root, rng))


class Narrow(OverBudget):
    budget = 2
    branches = False


class Uneven(DynaTree):
    """Its thresholds look at drawn tokens."""

    independent_paths = True


class Insists(Chain):
    """Takes it for granted that there is something to draw."""

    def grow(self, root, rng):
        tree = TreeBuilder(root)
        p = (yield tree.request([0]))[0]
        tree.add_children(0, [rng.choose(p)], WithoutReplacement(p))
        return tree.finish()


class Stubborn(OverBudget):
    budget = 2

    def __deepcopy__(self, memo):
        return FixedTree(1, 1, law="top-k")

    def __reduce__(self):
        return (type(self), ())


@pytest.mark.parametrize(
    ("policy", "check", "message"),
    [
        (OverBudget(), "budget", "drafts 2 nodes, over its budget of 1"),
        (Fickle(), "repeatable", "another tree from the same seed"),
        (Narrow(), "chain", "branches = False"),
        (
            Uneven(depth=2, branching=2, budget=6, law="with-replacement"),
            "independent-paths",
            "grows a tree with",
        ),
        (Insists(1), "nothing-to-propose", "Cannot draw"),
        (Stubborn(), "copies", "A deep copy of"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_every_check_of_a_policy_can_fail(policy, check, message):
    with pytest.raises(AssertionError, match=message):
        dict(checks_for(policy, models=5))[check]()


def test_a_policy_takes_no_oracle():
    with pytest.raises(InvalidInput, match="Chain is no backend and no drafter"):
        list(checks_for(Chain(2), oracle=ToyModel(13).logits))


def test_a_tree_is_no_strategy():
    tree = TokenTree(torch.tensor([0]), torch.tensor([-1]))
    with pytest.raises(InvalidInput, match="TokenTree is derived from none of TreePolicy, Verifier"):
        list(checks_for(tree))


@pytest.mark.parametrize("reason", ["", "  "])
def test_an_expected_failure_needs_a_reason(reason):
    with pytest.raises(InvalidInput, match="'bad-input' has no reason; say why"):
        parametrize_with_checks([FirstChildren()], expected_failures={"bad-input": reason})


def test_an_expected_failure_of_no_check_is_refused():
    with pytest.raises(InvalidInput, match="no check 'bad-inputs' here; did you mean 'bad-input'"):
        parametrize_with_checks([FirstChildren()], expected_failures={"bad-inputs": "none"})


CASES = """
    import os
    from draftwood import Verifier
    from draftwood.testing.checks.strategy_checks import parametrize_with_checks
    from tests.framework.third_party import FirstChildren, TargetAgain

    biased = {f"TargetAgain-{name}": "the residual is the target" for name in ("rounds", "declaration")}

    @parametrize_with_checks([FirstChildren(), TargetAgain()], expected_failures=biased)
    def test_mine(check):
        assert os.environ["DRAFTWOOD_MODELS"] == "2"
        check()
"""


def test_under_pytest_every_check_is_a_case_and_expected_failures_are_strict(tmp_path):
    lines = [line[4:] for line in CASES.splitlines()]
    (tmp_path / "test_mine.py").write_text("\n".join(lines))
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    command += ["--draftwood-models=2", "--draftwood-profile=ci", "-k", "rounds or declaration"]
    done = subprocess.run(
        [*command, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    words = [line.split() for line in done.stdout.splitlines() if "test_mine.py::" in line]
    said = {(word[0], word[1].split("::")[1]) for word in words}
    assert said == {
        ("PASSED", "test_mine[FirstChildren-declaration]"),
        ("PASSED", "test_mine[FirstChildren-rounds]"),
        ("XFAIL", "test_mine[TargetAgain-rounds]"),
        ("FAILED", "test_mine[TargetAgain-declaration]"),  # expected to fail, and passes
    }, done.stdout


def test_a_lossy_verifier_is_told_how_lossy_it_is():
    checks = dict(checks_for(create("verifiers", "typical")))
    said = checks["lossiness-Deterministic"]() or ""
    assert (
        "off by up to 0.95; 2.40 tokens per round over chains of 2, where recursive rejection gives 1.71"
        in said
    )
    assert not any(name.startswith("lossiness") for name, _ in checks_for(create("verifiers", "block")))


def test_lengths_that_are_a_method_are_told():
    class CallsIt(ToyBackend):
        def lengths(self) -> list[int]:  # type: ignore[override]
            return [len(text) for text in self.committed]

    with pytest.raises(InvalidInput, match="CallsIt.lengths is a method and is read without a call"):
        check_strategy(CallsIt(ToyModel(13)), oracle=ToyModel(13).logits)


def test_the_plugin_runs_a_sampler_over_all_models_and_reports_each(tmp_path):
    (tmp_path / "test_mine.py").write_text(
        "from draftwood.testing import prove_sampler\n"
        "def mine(case):\n"
        "    return case.target_probs[0].multinomial(1)\n"
        "def test_it_is_lossless(sampler_model):\n"
        "    prove_sampler(mine, models=sampler_model)\n",
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "pytest", "-q", "--draftwood-seed=3", "--junitxml=report.xml"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8")
    assert f"{len(sampler_models())} passed" in run.stdout, run.stdout + run.stderr
    report = (tmp_path / "report.xml").read_text(encoding="utf-8")
    assert all(f"test_it_is_lossless[{name}]" in report for name in sampler_models())


def test_another_seed_gives_other_models():
    one, other = (sampler_models(seed=seed)["plain"][0].probs([0]) for seed in (0, 3))
    assert not one.equal(other)


def test_the_plugin_loads_no_torch():
    code = (
        "import sys, draftwood_pytest; print(sorted({'torch', 'hypothesis', 'draftwood'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
