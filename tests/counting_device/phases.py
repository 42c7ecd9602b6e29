"""The phases of a round: which calls of a decoder make up which. Nothing of it is in the code that decodes.

`RoundLoop._draft` is the one private name here. The others are of the protocols.
"""

from __future__ import annotations

import functools
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from draftwood import SamplingParams, SpeculativeDecoder
from draftwood.decoding.loop import RoundLoop
from tests.counting_device.device import CountingDevice

POLICY = "policy"
DRAFT_PASS = "draft pass"
TARGET_PASS = "target pass"
PROBABILITIES = "probabilities"
VERIFICATION = "verification"
COMMIT = "commit"
PREFILL = "prefill"

PHASES = (POLICY, DRAFT_PASS, TARGET_PASS, PROBABILITIES, VERIFICATION, COMMIT)
"""Those that every round has."""


@contextmanager
def phases_of(decoder: SpeculativeDecoder, device: CountingDevice) -> Iterator[Counter[str]]:
    """Inside it, what `decoder` does on `device` is counted by phase; what is left of a round has none.

    Gives how often every phase began.
    """
    begun: Counter[str] = Counter()
    target, drafter, verifier = decoder.target, type(decoder.drafter), type(decoder.verifier)
    calls: list[tuple[type, str, str, Any]] = [
        (RoundLoop, "_draft", POLICY, None),
        (drafter, "distributions", DRAFT_PASS, None),
        (type(target), "extend", TARGET_PASS, target),
        *((SamplingParams, name, PROBABILITIES, None) for name in _methods(SamplingParams)),
        (verifier, "verify_rows", VERIFICATION, None),
        (type(target), "commit", COMMIT, target),
        (drafter, "commit", COMMIT, None),
        (type(target), "prefill", PREFILL, target),
        (type(target), "first_logits", PREFILL, target),
        (drafter, "prefill", PREFILL, None),
    ]
    with ExitStack() as stack:
        for owner, name, phase, only in calls:
            wrapped = _in_phase(getattr(owner, name), device, begun, phase, only)
            stack.enter_context(patch.object(owner, name, wrapped))
        yield begun


def _methods(owner: type) -> list[str]:
    """Names of the public methods that a class defines."""
    return [name for name, one in vars(owner).items() if inspect.isfunction(one) and name[0] != "_"]


def _in_phase(
    method: Callable[..., Any], device: CountingDevice, begun: Counter[str], phase: str, only: object
) -> Callable[..., Any]:
    """Count `method` in `phase`; with `only`, just for that object, as a draft may be of the same class."""

    @functools.wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if only is not None and self is not only:
            return method(self, *args, **kwargs)
        begun[phase] += 1
        with device.phase(phase):
            return method(self, *args, **kwargs)

    return call
