"""Of many cases that show the same, `make test` runs some, and `make thorough` all."""

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
