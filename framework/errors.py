"""Every error draftwood raises on purpose: one sentence that names the value and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DraftwoodError(Exception):
    """Base of all errors raised on purpose."""


class InvalidInput(DraftwoodError, ValueError):
    """A prompt, option or parameter that cannot be used."""


class InvalidTree(DraftwoodError, ValueError):
    """A malformed token tree: a cycle, a parent after its child, a token outside the vocabulary."""


class InvalidDistribution(DraftwoodError, ValueError):
    """Logits with NaN or infinity, or probabilities that are negative or do not sum to 1."""


class IncompatibleStrategy(DraftwoodError, TypeError):
    """A policy, drafter and verifier that do not fit each other."""


class IncompatibleModels(DraftwoodError, ValueError):
    """A target and a drafter that do not share one vocabulary."""


class UnsupportedModel(DraftwoodError, ValueError):
    """A model that no backend can serve, or that cannot be loaded safely."""


class UnknownStrategy(DraftwoodError, LookupError):
    """A strategy or option name that nothing is registered under."""


class OutOfMemory(DraftwoodError, RuntimeError):
    """The device ran out of memory during a pass."""


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence: `"; did you mean 'x'?"`, or all `names` when none is close."""
    names = sorted(names)
    match = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {match[0]!r}?" if match else f"; known are: {', '.join(names) or 'none'}."
