"""Names the source of chance that code draws from without an enumerator seeing it."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import attrs
import numpy as np

from draftwood.testing.proofs.hidden_randomness import drawn_from, process_states

_CLOCKS = (
    "time",
    "time_ns",
    "monotonic",
    "monotonic_ns",
    "perf_counter",
    "perf_counter_ns",
    "process_time",
    "process_time_ns",
    "now",
    "utcnow",
    "today",
)
_OF_SYSTEM = ("urandom", "getrandom", "generate_time_safe")
_RANDOM = random.Random
_OF_PROCESS = vars(random)["_inst"]
"""The class itself and Python's own generator, which are replaced while a sampler runs."""

_OF_NUMPY = vars(np.random.mtrand)["_rand"]


def source_of(run: Callable[[], object]) -> str:
    """Returns the name of the source that `run` draws from, in words; empty where none is found.

    It is run once more and each function that it calls and that is not written in Python is looked at: those
    that read a clock or the system's entropy, methods of generators, and those that move a generator of the
    process on. Then generators of Python and numpy that exist already are compared with what they were.
    """
    kept = [(one, _state(one)) for one in gc.get_objects() if _is_generator(one)]
    watch = _Watch(process_states())
    sys.setprofile(watch)
    try:
        run()
    except Exception:  # a run that came out otherwise may fail
        pass
    finally:
        sys.setprofile(None)
    moved = [one for one, state in kept if _state(one) != state]
    if moved:
        kind = type(moved[0])
        package = kind.__module__.removesuffix("._generator").removesuffix(".mtrand")
        return f"a {package}.{kind.__name__} that exists already"
    return watch.found or watch.address


@attrs.define(eq=False)
class _Watch:
    """Called by Python around each call of a run; keeps the first that draws."""

    before: dict[str, object]
    found: str = ""
    address: str = ""

    def __call__(self, frame: FrameType, event: str, function: Any) -> None:
        if self.found or event not in ("c_call", "c_return"):
            return
        name, of = getattr(function, "__name__", ""), getattr(function, "__self__", None)
        if moved := drawn_from(self.before):
            # Before a call it was one of functions that Python does not report, as numpy's.
            self.found = f"{moved[0]} by {name}" if event == "c_return" else moved[0]
        elif event == "c_return":
            return
        elif isinstance(of, _RANDOM) and of is not _OF_PROCESS:
            self.found = "a random.Random that exists already"
        elif name in _OF_SYSTEM:
            self.found = f"the system's entropy ({name}, as in os.urandom, secrets, uuid and SystemRandom)"
        elif name in _CLOCKS and "time" in f"{getattr(of, '__name__', '')}{function.__module__}":
            self.found = f"a clock ({name})"
        elif name in ("id", "hash", "__hash__") and not _of_package(frame):
            self.address = f"chance that is not seen here, perhaps an object's address ({name})"


def _of_package(frame: FrameType) -> bool:
    """Returns whether code of an installed package runs, which asks for addresses of objects for itself."""
    return "site-packages" in frame.f_code.co_filename or frame.f_globals.get("__name__", "").startswith(
        ("draftwood.", "importlib", "contextlib", "unittest.")
    )


def _is_generator(one: object) -> bool:
    """Returns whether it is a generator, but none that all code of the process shares."""
    if one is _OF_PROCESS or one is _OF_NUMPY:
        return False
    kind = type(one)
    return issubclass(kind, (np.random.Generator, np.random.RandomState)) or (
        issubclass(kind, _RANDOM) and not issubclass(kind, random.SystemRandom)
    )


def _state(one: Any) -> object:
    if isinstance(one, np.random.Generator):
        return str(one.bit_generator.state)
    return one.getstate() if isinstance(one, _RANDOM) else str(one.get_state())
