"""A mistake, and the named check that catches it as it runs by default."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest import mock

import attrs

from draftwood.testing import checks_for
from draftwood.testing.checks.decoding_checks import decoding_checks

Patch = tuple[Any, str, Any]
"""An object, class or module, the name of one of its attributes, and what stands there instead."""


@attrs.frozen
class Caught:
    """The first check that failed, how far off things were where that is a number, and what it said."""

    check: str
    error: float | None
    message: str


@attrs.frozen
class Mistake:
    """One mistake in a correct part.

    Attributes:
        name: what is wrong, in a few words.
        story: where it was seen, or why somebody would write it.
        part: "policy", "verifier", "drafter", "backend", "randomness" or "decoding".
        right: builds the part without the mistake, in which no check fails; for decoding it builds nothing.
        wrong: builds it with the mistake; None where `patches` make it.
        patches: what is replaced in the code below the part.
    """

    name: str
    story: str
    part: str
    right: Callable[[], object]
    wrong: Callable[[], object] | None = None
    patches: Sequence[Patch] = ()

    def caught(self, check: str | None = None) -> Caught | None:
        """The first check that fails, or `check` if it does; None where the mistake slips past."""
        with ExitStack() as stack:
            for patch in self.patches:
                stack.enter_context(mock.patch.object(*patch))
            return self._first_failure(self.wrong or self.right, check)

    def clean(self, check: str | None = None) -> Caught | None:
        """The first check that fails without the mistake; None as it should be."""
        return self._first_failure(self.right, check)

    def _first_failure(self, build: Callable[[], object], only: str | None) -> Caught | None:
        checks = decoding_checks() if self.part == "decoding" else checks_for(build())
        named = ((name, check) for name, check in checks if only in (None, name))
        return next((caught for name, check in named if (caught := failure(name, check))), None)


def failure(name: str, check: Callable[[], object]) -> Caught | None:
    """Returns the error that `check` raises; None where it passes."""
    try:
        check()
    except AssertionError as error:
        return Caught(name, getattr(error, "error", None), str(error))
    return None
