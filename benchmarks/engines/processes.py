"""Every engine in its own process, so that threads and memory of none are in the way of another."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from functools import partial
from time import perf_counter, process_time
from typing import Any

import attrs
import torch

from benchmarks.engines.contenders import Contender, Writer, Written
from draftwood.base.errors import InvalidInput

Maker = Callable[..., Sequence[Contender]]
"""Makes contenders. It goes to another process: a function of a module, and arguments that can be pickled."""

_made: dict[str, Contender] = {}
"""In a process for one maker: the contenders that it made."""


def in_processes(
    makers: Sequence[tuple[Maker, tuple[Any, ...]]], *, threads: int, until: ExitStack
) -> list[Contender]:
    """The contenders of all makers, whose texts are written and timed in one process for each maker.

    Args:
        makers: functions and their arguments. They run one after another.
        threads: of torch in every process.
        until: ends the processes when it closes.

    Raises:
        InvalidInput: the process of an engine has ended by itself; writing raises it too.
    """
    context = multiprocessing.get_context("spawn")
    contenders = list[Contender]()
    for make, arguments in makers:
        process = until.enter_context(ProcessPoolExecutor(1, context, torch.set_num_threads, (threads,)))
        made = _result(process, make.__name__, _make, make, arguments)
        contenders += [attrs.evolve(one, write=partial(_ask, process, one.name)) for one in made]
    return contenders


def timed(write: Writer, prompt: list[int], count: int) -> Written:
    """The text, with the seconds that it took."""
    busy, started = process_time(), perf_counter()
    written = write(prompt, count)
    seconds = perf_counter() - started
    return attrs.evolve(written, seconds=seconds, cpu=process_time() - busy)


def _ask(process: ProcessPoolExecutor, name: str, prompt: list[int], count: int) -> Written:
    return _result(process, name, _write, name, prompt, count)


def _result(process: ProcessPoolExecutor, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return process.submit(function, *arguments).result()
    except BrokenProcessPool as error:
        raise InvalidInput(
            f"The process of {name!r} has ended by itself; leave it out with --engines or --others."
        ) from error


def _make(make: Maker, arguments: tuple[Any, ...]) -> list[Contender]:
    """In the process: make them and keep them; the models that write stay here."""
    made = make(*arguments)
    _made.update((one.name, one) for one in made)
    return [attrs.evolve(one, write=_nothing) for one in made]


def _write(name: str, prompt: list[int], count: int) -> Written:
    return timed(_made[name].write, prompt, count)


def _nothing(prompt: list[int], count: int) -> Written:
    raise NotImplementedError
