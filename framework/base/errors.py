"""Every error draftwood raises on purpose: one sentence that names the value and the remedy."""

from __future__ import annotations

import difflib
import re
import threading
from collections.abc import Iterable
from typing import TypeVar

Error = TypeVar("Error", bound=BaseException)


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


_PLACE = re.compile(r"(?:Caught exception: )?Exception from \S+:\d+:\s*")


def sentence(error: BaseException) -> str:
    """Returns the text of `error` for a person: its own sentence, or its class and first line.

    Lines that only name a place in the sources of OpenVINO are left out; its reason follows them.
    """
    said = next(
        (line for line in str(error).strip().splitlines() if not _PLACE.fullmatch(line)), "no message"
    )
    return said if isinstance(error, DraftwoodError) else f"{type(error).__name__}: {said}"


def without_frames(error: Error) -> Error:
    """Returns `error` without tracebacks, whose frames keep all that they hold alive."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def is_ctrl_c(error: BaseException) -> bool:
    """Returns whether `error` is Ctrl-C: it only reaches the main thread, elsewhere some code raised it."""
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence: `"; did you mean 'x'?"`, or all `names` when none is close."""
    names = sorted(names)
    match = difflib.get_close_matches(name, names, n=1)
    return f"; did you mean {match[0]!r}?" if match else f"; known are: {', '.join(names) or 'none'}."


class _StopIteration:
    """A block out of which a `StopIteration` comes as it is, though a generator raised it."""

    def __enter__(self) -> None:
        """Enter the block."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Python makes a RuntimeError of one that leaves a generator.
        if isinstance(error, RuntimeError) and isinstance(error.__cause__, StopIteration):
            raise error.__cause__ from None


stop_iteration_as_it_is = _StopIteration()
