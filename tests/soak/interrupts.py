"""Ctrl-C at random moments: within `generate`, and on the command line."""

from __future__ import annotations

import random
import signal
import tempfile
import time
from collections.abc import Sequence
from time import perf_counter
from types import FrameType

import attrs

from draftwood.base import locks
from tests.generate_fuzz.processors import Collects
from tests.soak.processes import Started, started
from tests.soak.result import SoakResult
from tests.soak.subjects import Call, Subject

CALLS_A_SUBJECT = 25
TOO_LATE = "too late"


@attrs.define(eq=False)
class Alarm:
    """Raises `KeyboardInterrupt` in the main thread once, as Ctrl-C does, after some seconds.

    Attributes:
        rang: whether it did.
    """

    rang: bool = False

    def ring(self, signum: int, frame: FrameType | None) -> None:
        self.rang = True
        signal.raise_signal(signal.SIGINT)


def one_interrupt(call: Call, expected: list[list[int]], after: float) -> tuple[str, str | None]:
    """Where Ctrl-C came, `after` seconds into a call, and what was wrong then."""
    streamer, alarm = Collects(), Alarm()
    text: list[list[int]] | None = None
    before = (
        signal.signal(signal.SIGALRM, alarm.ring),
        signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    came = False
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, after)
            text = call.run(streamer)
            came = not alarm.rang
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGALRM, before[0])
        signal.signal(signal.SIGINT, before[1])
    if came:
        return TOO_LATE, None
    phase = "raised" if text is None else "text so far"
    if text is not None and not all(
        whole[: len(row)] == row for row, whole in zip(text, expected, strict=True)
    ):
        return phase, f"{text} does not begin {expected}"
    if not streamer.ends and (streamer.tokens or (call.loop is None and streamer.prompt is not None)):
        # `generate` of transformers shows the prompt before it hands the call on.
        return phase, "streamer.end() was not called"
    if wrong := call.left_behind():
        return phase, wrong
    try:
        result = call.run(Collects())
    except Exception as raised:
        return phase, f"the next call raised {type(raised).__name__}: {raised}"
    return phase, None if result == expected else f"the next call wrote {result} instead of {expected}"


def interrupts(count: int, *, seed: int = 0, calls: int = CALLS_A_SUBJECT) -> SoakResult:
    """`count` times Ctrl-C within `generate`, in `calls` calls of each subject."""
    result, rng, number = SoakResult("Ctrl-C in generate"), random.Random(seed), seed
    while result.done < count:
        subject = Subject.drawn(number)
        number += 1
        call = subject.call()
        expected = call.run(Collects())
        began = perf_counter()
        assert call.run(Collects()) == expected
        whole = perf_counter() - began
        for _ in range(calls):
            after = max(rng.uniform(0, whole), 1e-6)
            phase, wrong = one_interrupt(call, expected, after)
            if phase != TOO_LATE:
                result.tried(phase, wrong and f"{wrong}; after {after:.6f} s, {subject}")
            if wrong is not None:
                locks.active.clear()
                call = subject.call()
            if result.done == count:
                break
    result.figures["subjects"] = str(number - seed)
    return result


GENERATE = ("generate", "--prompt", "Once upon a time", "--max-new-tokens", "4000", "-o", "budget=16")
BENCH = ("bench", "--prompts", "2", "--new-tokens", "400", "--strategy", "leviathan:length=2")


def command_line(count: int, *, seed: int = 0) -> SoakResult:
    """`count` times Ctrl-C while a command runs: exit code 130, and no traceback."""
    result, rng = SoakResult("Ctrl-C on the command line"), random.Random(seed)
    for number in range(count):
        with tempfile.TemporaryDirectory() as folder:
            words: Sequence[str] = GENERATE if number % 2 else (*BENCH, "--to", folder + "/run")
            one = started(words)
            # From here on the command itself runs: torch is being loaded, or already is.
            one.wait_for_torch()
            after = rng.uniform(0, 1 if number % 4 < 2 else 8)
            time.sleep(after)
            if one.process.poll() is not None:
                one.process.communicate()
                continue
            one.process.send_signal(signal.SIGINT)
            result.tried(words[0], _ended_plainly(one, after))
    return result


def _ended_plainly(one: Started, after: float) -> str | None:
    _, errors = one.process.communicate(timeout=120)
    code = one.process.returncode
    if code != 130 or "Traceback" in errors or "Error" in errors:
        return f"exit code {code} after {after:.2f} s, and on stderr: {errors[-2000:]!r}"
    return None
