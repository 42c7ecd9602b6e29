"""Selection of cases: of many similar ones, `make test` runs some and `make thorough` all."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def marks_unless(ordinary: bool) -> list[pytest.MarkDecorator]:
    """The marks of a case that `make test` runs only where it is `ordinary`."""
    return [] if ordinary else [pytest.mark.thorough]


def some_of(names: Iterable[str], some: Collection[str]) -> list[Any]:
    """Parameters, of which all but `some` are for `make thorough`."""
    known = list(names)
    assert set(some) <= set(known), sorted(set(some) - set(known))
    return [pytest.param(name, marks=marks_unless(name in some)) for name in known]


def every(step: int, cases: Iterable[Any]) -> list[Any]:
    """Parameters, of which all but each `step`-th are for `make thorough`."""
    return [pytest.param(case, marks=marks_unless(number % step == 0)) for number, case in enumerate(cases)]


def checks_but(checks: Any, thorough: Collection[str]) -> pytest.MarkDecorator:
    """Returns the cases of `parametrize_with_checks`; cases of these ids are left to `make thorough`."""
    names, cases = checks.args
    known = {case.id for case in cases}
    assert set(thorough) <= known, sorted(set(thorough) - known)
    marked = [
        pytest.param(*case.values, id=case.id, marks=[*case.marks, *marks_unless(case.id not in thorough)])
        for case in cases
    ]
    return pytest.mark.parametrize(names, marked)
