"""An error in every call of backends, drafters, policies, verifiers and what else a decoder calls."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import wraps
from typing import Any
from unittest.mock import patch

import attrs
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from draftwood import InvalidInput, OutOfMemory, SpeculativeDecoder
from draftwood.base import locks
from tests.generate_fuzz.processors import Collects
from tests.soak.result import SoakResult
from tests.soak.subjects import Call, Subject

BACKEND = ("prefill", "first_logits", "release", "extend", "commit")
DRAFTER = ("prefill", "release", "distributions", "commit")
POLICY = ("grow", "first_state", "observe")
VERIFIER = ("verify", "verify_rows")
HELPER = ("__call__", "start", "advance", "masks")
STREAMER = ("put", "end")


class Injected(Exception):
    """Raised by nobody else."""


ERRORS: tuple[Callable[[], BaseException], ...] = (
    lambda: Injected("no luck"),
    lambda: MemoryError("none left"),
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
    lambda: RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes."),
    lambda: KeyboardInterrupt(),
)


@attrs.define(eq=False)
class Points:
    """Counts the moments at which something may fail, and fails at one of them.

    Attributes:
        at: the moment, counted from 0; None never.
        error: what is raised there.
        twice: whether one like it is raised at the next moment too, as by one who presses Ctrl-C again.
        passed: moments so far.
        point: where the error was raised; empty before.
    """

    at: int | None = None
    error: BaseException | None = None
    twice: bool = False
    passed: int = 0
    point: str = ""

    def passing(self, point: str) -> None:
        number, self.passed = self.passed, self.passed + 1
        if self.at is None or self.error is None:
            return
        if number == self.at:
            self.point = point
            raise self.error
        if self.twice and number == self.at + 1:
            # What cleans up is what is called next.
            self.point = f"{self.point}, then {point}"
            raise type(self.error)(*self.error.args)


class Operations(TorchDispatchMode):
    """Every operation of torch inside it is such a moment."""

    def __init__(self, points: Points) -> None:
        super().__init__()
        self.points = points

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.points.passing("operation of torch")
        return func(*args, **(kwargs or {}))


def _roles(call: Call, streamer: Collects) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    decoder: SpeculativeDecoder = call.decoder
    yield "target", decoder.target, BACKEND
    for backend in decoder.drafter.backends:
        yield "draft", backend, BACKEND
    for drafter in (decoder.drafter, *getattr(decoder.drafter, "members", ())):
        yield "drafter", drafter, DRAFTER
    yield "policy", decoder.policy, POLICY
    yield "verifier", decoder.verifier, VERIFIER
    for helper in (*call.processors, *call.helpers):
        if helper is not None:
            yield type(helper).__name__, helper, HELPER
    yield "streamer", streamer, STREAMER


@contextmanager
def failing(call: Call, streamer: Collects, points: Points) -> Iterator[None]:
    """Inside it every call of the decoder's parts passes `points`, before it begins and after it ends.

    The classes are wrapped, as instances take no new attributes.
    """
    roles = {id(part): role for role, part, _ in _roles(call, streamer)}
    with ExitStack() as stack:
        known: set[tuple[type, str]] = set()
        for _, part, names in _roles(call, streamer):
            for name in names:
                if hasattr(type(part), name) and (type(part), name) not in known:
                    known.add((type(part), name))
                    wrapped = (_generator if name == "grow" else _function)(type(part), name, roles, points)
                    stack.enter_context(patch.object(type(part), name, wrapped))
        yield


def _function(kind: type, name: str, roles: dict[int, str], points: Points) -> Any:
    original = getattr(kind, name)

    @wraps(original)
    def call(self: Any, *args: Any, **options: Any) -> Any:
        point = f"{roles.get(id(self), kind.__name__)}.{name}"
        points.passing(f"before {point}")
        result = original(self, *args, **options)
        points.passing(f"after {point}")
        return result

    return call


def _generator(kind: type, name: str, roles: dict[int, str], points: Points) -> Any:
    original = getattr(kind, name)

    @wraps(original)
    def grow(self: Any, *args: Any, **options: Any) -> Generator[Any, Any, Any]:
        growing, answer = original(self, *args, **options), None
        while True:
            points.passing(f"in {roles.get(id(self), kind.__name__)}.{name}")
            try:
                request = growing.send(answer)
            except StopIteration as finished:
                return finished.value
            answer = yield request

    return grow


def _run(call: Call, streamer: Collects, points: Points, *, operations: bool) -> list[list[int]]:
    with failing(call, streamer, points), Operations(points) if operations else nullcontext():
        return call.run(streamer)


def one_fault(call: Call, expected: list[list[int]], points: Points, *, operations: bool) -> str | None:
    """Returns the fault of a call that fails at a moment, or of the next call; None if there was none."""
    streamer = Collects()
    came, text = None, None
    try:
        text = _run(call, streamer, points, operations=operations)
    except BaseException as raised:
        came = raised
    if not points.point:
        return "the call ended without coming there"
    wrong = _as_raised(call, points, came, text, expected)
    came = None  # its traceback holds frames
    if wrong is None and streamer.prompt is not None and not streamer.ends and "streamer" not in points.point:
        wrong = "streamer.end() was not called"
    wrong = wrong or call.left_behind()
    if wrong is None:
        again = Collects()
        try:
            result = call.run(again)
        except Exception as raised:
            return f"the next call raised {type(raised).__name__}: {raised}"
        if result != expected:
            wrong = f"the next call wrote {result} instead of {expected}"
    return wrong


def _as_raised(
    call: Call,
    points: Points,
    came: BaseException | None,
    text: list[list[int]] | None,
    expected: list[list[int]],
) -> str | None:
    error = points.error
    within = ("operation of torch", *(f"{type(one).__name__}.__call__" for one in call.processors))
    tried = bool(call.processors) and any(point in points.point for point in within)
    if isinstance(error, KeyboardInterrupt) and text is not None and call.loop is None:
        # `generate` ends by Ctrl-C and returns what was written.
        begun = all(whole[: len(row)] == row for row, whole in zip(text, expected, strict=True))
        return None if begun else f"Ctrl-C gave {text}, which does not begin {expected}"
    if came is None:
        # A processor is tried before the call, on a text that it need not know.
        return None if tried and text == expected else f"{type(error).__name__} was swallowed"
    wrapped = isinstance(came, OutOfMemory) or (tried and isinstance(came, InvalidInput))
    cause = came.__cause__ if wrapped else came
    if cause is error or (points.twice and type(cause) is type(error)):
        return None
    return f"{type(error).__name__} came out as {type(came).__name__}: {came}"


def faults(count: int, *, seed: int = 0, first: int = 0, per_subject: int | None = None) -> SoakResult:
    """At least `count` faults: for subject after subject one at every moment of its call.

    Args:
        count: of faults.
        seed: chooses operations of torch, and which errors.
        first: number of the first subject.
        per_subject: no more than so many moments of a call, spread over it; None takes all.
    """
    result, rng, number = SoakResult("faults"), random.Random(seed), first
    while result.done < count:
        subject = Subject.drawn(number)
        number += 1
        call, expected = subject.call(), subject.call().run(Collects())
        for operations in (False, True):
            counting = Points()
            _run(call, Collects(), counting, operations=operations)
            moments = list(range(counting.passed))
            limit = per_subject or (60 if operations else len(moments))
            for moment in sorted(rng.sample(moments, min(limit, len(moments)))):
                points = Points(moment, rng.choice(ERRORS)(), twice=rng.random() < 0.3)
                wrong = one_fault(call, expected, points, operations=operations)
                result.tried(
                    points.point or "nowhere",
                    wrong and f"{wrong}; {type(points.error).__name__} at moment {moment}, {subject}",
                )
                if wrong is not None:
                    locks.active.clear()
                    call = subject.call()
    result.figures["subjects"] = str(number - first)
    return result
