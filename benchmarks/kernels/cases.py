"""A case of `python -m benchmarks kernels`: one operation at one size, and everybody who can do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import attrs
import torch
from torch import Tensor

from draftwood.kernels.configuration import Configuration
from draftwood.kernels.testing import relative_error

FOREIGN = 2e-2
"""The relative error that what is not ours may have in half precision; it rounds where it likes."""


@attrs.frozen(eq=False)
class Contender:
    """One implementation of what a case asks.

    Attributes:
        name: as printed.
        call: is timed.
        read: makes of the call's result what the others give; is not timed.
        kernel: whether a kernel of this repository must serve it.
        judged: whether its result is the case's; a floor, or the making of a mask, gives another.
        operations: where they differ from the case's; 0 has no limits.
        at_most: the most that the case's own time may be, as a part of this one's.
    """

    name: str
    call: Callable[[], Any]
    read: Callable[[Any], Any] = lambda result: result
    kernel: bool = False
    judged: bool = True
    operations: int | None = None
    at_most: float | None = None


@attrs.frozen
class Bound:
    """The best that the card allows, as the time in which `bytes` pass through its memory.

    Attributes:
        name: as printed.
        bytes: of it.
        at_most: the most that a case's own time may be, as a part of this one.
    """

    name: str
    bytes: int
    at_most: float


@attrs.frozen(eq=False)
class Case:
    """One operation at one size.

    Attributes:
        operation: its folder in `kernels/`.
        size: in words.
        expected: the reference's result.
        contenders: ours first.
        allowed: relative error of ours, by norm; 0 asks for equality.
        bytes: that have to pass through memory once.
        operations: of arithmetic that the result needs.
        arithmetic: the type that is multiplied, as in `Card.arithmetic`.
        reset: undoes what a call leaves, before its result is judged.
        bound: that its time is compared with.
    """

    operation: str
    size: str
    expected: Callable[[], Any]
    contenders: list[Contender]
    allowed: float = 0.0
    bytes: int = 0
    operations: int = 0
    arithmetic: str = "fp16"
    reset: Callable[[], object] = lambda: None
    bound: Bound | None = None

    def complaint(self, contender: Contender) -> str | None:
        """Returns the fault in the result of `contender`; None if there is none."""
        self.reset()
        with patch.object(
            Configuration, "launch", autospec=True, side_effect=Configuration.launch
        ) as launches:
            result = contender.read(contender.call())
        if contender.kernel and not launches.called:
            return "no kernel ran, a reference did"
        if not contender.judged:
            return None
        expected = self.expected()
        if not self.allowed:
            alike = torch.equal(result, expected) if isinstance(result, Tensor) else result == expected
            return None if alike else "differs from its reference"
        allowed = self.allowed if contender.kernel else max(self.allowed, FOREIGN)
        error = relative_error(result, expected)
        if not error <= allowed:
            return f"differs from its reference by {error:.2g}, more than {allowed}"
        return None
