"""Every engine in its own process, so that threads and memory of none are in the way of another."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from time import perf_counter, process_time
from typing import Any

import attrs
import torch

from benchmarks.engines.contenders import Contender, Writer, Written

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
    """
    context = multiprocessing.get_context("spawn")
    contenders = list[Contender]()
    for make, arguments in makers:
        process = until.enter_context(ProcessPoolExecutor(1, context, torch.set_num_threads, (threads,)))
        made = process.submit(_make, make, arguments).result()
        contenders += [attrs.evolve(one, write=partial(_ask, process, one.name)) for one in made]
    return contenders


def timed(write: Writer, prompt: list[int], count: int) -> Written:
    """The text, with the seconds that it took."""
    busy, started = process_time(), perf_counter()
    written = write(prompt, count)
    seconds = perf_counter() - started
    return attrs.evolve(written, seconds=seconds, cpu=process_time() - busy)


def _ask(process: ProcessPoolExecutor, name: str, prompt: list[int], count: int) -> Written:
    return process.submit(_write, name, prompt, count).result()


def _make(make: Maker, arguments: tuple[Any, ...]) -> list[Contender]:
    """In the process: make them and keep them; the models that write stay here."""
    made = make(*arguments)
    _made.update((one.name, one) for one in made)
    return [attrs.evolve(one, write=_nothing) for one in made]


def _write(name: str, prompt: list[int], count: int) -> Written:
    return timed(_made[name].write, prompt, count)


def _nothing(prompt: list[int], count: int) -> Written:
    raise NotImplementedError
