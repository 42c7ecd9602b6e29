"""One call that proves a strategy: `check_strategy`, and the same as one pytest case a check."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from draftwood.base.errors import InvalidInput, nearest
from draftwood.laws.randomness import Randomness
from draftwood.protocols import Drafter, StateBackend, TreePolicy, Verifier
from draftwood.protocols.shape import check_shape
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.models.drafter_with_target import judged
from draftwood.testing.models.oracles import LogitsAfter

MODELS = "DRAFTWOOD_MODELS"
"""Environment variable: random toy models that a check tries; the pytest option sets it."""


@attrs.frozen(eq=False)
class Check:
    """One check of one strategy; call it to run it.

    Attributes:
        strategy: the strategy that is checked.
        name: of the check.
        demand: its demand, in a sentence.
        models: random toy models that it tries.

    Raises:
        LawBroken: when called, and the strategy fails; the message has its name and the reason.
    """

    strategy: object
    name: str
    demand: str
    models: int
    _run: Callable[[int], str | None]

    def __call__(self) -> str | None:
        """Run it; returns what it looked at, where that is not all, else None."""
        try:
            return self._run(self.models)
        except Exception as raised:
            error = raised
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]  # a failure that did not come again when it was repeated
            what = f"{error}" if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            broken = LawBroken(f"{type(self.strategy).__name__} fails the check {self.name!r}: {what}")
            if isinstance(error, LawBroken):
                broken.error, broken.likely = error.error, error.likely
            raise broken from error


def checks_for(
    strategy: object,
    *,
    models: int | None = None,
    oracle: LogitsAfter | None = None,
    used: object | None = None,
) -> Iterator[tuple[str, Check]]:
    """The named checks that apply to a policy, verifier, drafter, backend or source of chance.

    Args:
        strategy: an instance whose class is derived from one of the protocols. A policy should grow
            a small tree, since all of its outcomes are visited; a drafter or backend holds no rows.
        models: number of random toy models, or sequences of calls, that a check tries besides the chosen
            ones. Default: the value of `--draftwood-models`, else 2; a backend gets at least 20 sequences.
        oracle: next-token logits `[vocab]` after a list of tokens, computed independently, with which a
            backend or drafter is compared. Default: its `model`. A backend needs one of them.

    Raises:
        InvalidInput: `strategy` implements none of the protocols, or a method or attribute of its protocol is
            missing or of another form; a backend with neither oracle nor model;
            an oracle for a policy or a verifier.
    """
    if models is None:
        models = int(os.environ.get(MODELS, "2"))
    check_shape(judged(strategy))
    for name, check in _kind(strategy, oracle, used):
        description = inspect.getdoc(getattr(check, "func", check)) or ""
        yield name, Check(judged(strategy), name, description.partition("\n")[0], models, check)


def check_strategy(
    strategy: object,
    *,
    models: int | None = None,
    oracle: LogitsAfter | None = None,
    used: object | None = None,
) -> None:
    """Run all checks of `checks_for`; for a policy and a verifier they are proofs on random toy models.

    Arguments as for `checks_for`.

    Raises:
        AssertionError: a check failed; the message has its name and the reason.
    """
    for _, check in checks_for(strategy, models=models, oracle=oracle, used=used):
        check()


def parametrize_with_checks(
    strategies: Sequence[object],
    *,
    expected_failures: Mapping[str, str] | None = None,
    models: int | None = None,
    oracle: LogitsAfter | None = None,
) -> Callable[[Any], Any]:
    """Decorator for a pytest function of one argument, `check`: one case for every strategy and check.

        @parametrize_with_checks([MyPolicy(budget=3), MyVerifier()])
        def test_my_strategies(check):
            check()

    Args:
        strategies: as for `checks_for`.
        expected_failures: reasons by the name of a check, or by the case's id (`"MyVerifier-bad-input"`)
            for one strategy only. Such a case must fail with an `AssertionError`; when it passes, that is a
            failure.
        models: as for `checks_for`.
        oracle: as for `checks_for`, of every one of them.

    Raises:
        InvalidInput: a reason is empty, or a name belongs to no check.
    """
    import pytest

    expected = dict(expected_failures or {})
    for name, reason in expected.items():
        if not reason.strip():
            raise InvalidInput(f"The expected failure {name!r} has no reason; say why it may fail.")
    cases, names = [], set()
    labels = _labels(strategies)
    for label, strategy in zip(labels, strategies, strict=True):
        for name, check in checks_for(strategy, models=models, oracle=oracle):
            case = f"{label}-{name}"
            names |= {name, case}
            reason = expected.get(case, expected.get(name, ""))
            marks = [pytest.mark.xfail(reason=reason, raises=AssertionError, strict=True)] if reason else []
            cases.append(pytest.param(check, id=case, marks=marks))
    for name in expected:
        if name not in names:
            raise InvalidInput(f"There is no check {name!r} here{nearest(name, names)}")
    return pytest.mark.parametrize("check", cases)


def _labels(strategies: Sequence[object]) -> list[str]:
    """Class names, numbered where several strategies are of one class."""
    names = [type(judged(strategy)).__name__ for strategy in strategies]
    return [
        name if names.count(name) == 1 else f"{name}{names[:index].count(name) + 1}"
        for index, name in enumerate(names)
    ]


def _kind(
    strategy: object, oracle: LogitsAfter | None, used: object | None
) -> Iterator[tuple[str, Callable[[int], str | None]]]:
    # The bases are looked up by name: a check by `isinstance` would ask for the attributes one by one,
    # and a class that lacks one should be told which by the check of its declaration.
    bases = type(strategy).__mro__
    if Drafter in bases:
        from draftwood.testing.checks.drafter_checks import drafter_checks

        return drafter_checks(strategy, oracle)  # type: ignore[arg-type]
    if StateBackend in bases:
        from draftwood.testing.checks.backend_checks import backend_checks

        return backend_checks(strategy, oracle)  # type: ignore[arg-type]
    if oracle is not None:
        raise InvalidInput(
            f"{type(strategy).__name__} is no backend and no drafter, so it needs no oracle; leave it out."
        )
    if Verifier in bases:
        from draftwood.testing.checks.verifier_checks import verifier_checks

        return verifier_checks(strategy, used)  # type: ignore[arg-type]
    if TreePolicy in bases:
        from draftwood.testing.checks.policy_checks import policy_checks

        return policy_checks(strategy, used)  # type: ignore[arg-type]
    if Randomness in bases:
        from draftwood.testing.checks.randomness_checks import randomness_checks

        return randomness_checks(strategy)  # type: ignore[arg-type]
    raise InvalidInput(
        f"{type(strategy).__name__} is derived from none of TreePolicy, Verifier, Drafter, StateBackend "
        "and Randomness; give an instance of such a class."
    )
