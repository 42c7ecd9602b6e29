"""Loops that run as machine code on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

import numpy as np

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, which goes over arrays and numbers alone, compiled by numba when it is first called.

    The code is kept on disk for the next process: beside the source, or where numba keeps it for a user.
    Where neither can be written to, every process compiles anew. Sums may be taken in another order. It is
    for what depends on what came before, such as a running sum that decides how it goes on, or takes several
    sums of one pass: numpy and torch go over an array once for each.
    """

    machine_code: Callable[P, R] | None = None
    known: set[tuple[Any, ...]] = set()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal machine_code
        kinds = (*map(_kind, args), *kwargs, *map(_kind, kwargs.values()))
        if machine_code is not None and kinds in known:
            return _heard(machine_code, *args, **kwargs)
        # Compiled in a thread, where Ctrl-C does not come: the compiler would lose it, and its lock.
        with ThreadPoolExecutor(1) as thread:
            made = machine_code or thread.submit(_made, function).result()
            result = thread.submit(made, *args, **kwargs).result()
        machine_code = made
        known.add(kinds)
        return result

    return call


def _kind(argument: Any) -> Any:
    """Arguments of the same kind run the same code."""
    if isinstance(argument, np.ndarray):
        return argument.dtype, argument.ndim, argument.flags.num
    return type(argument)


def _heard(machine_code: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Calls `machine_code`; raises Ctrl-C, or what else a signal's handler raises, as it is.

    numba makes arrays of results by a call of Python, and does not look at what that raises.
    """
    try:
        return machine_code(*args, **kwargs)
    except SystemError as error:
        cause: BaseException | None = error
        while isinstance(cause, SystemError):
            cause = cause.__cause__
        if cause is None:
            raise
        raise cause from None


def _made(function: Callable[P, R]) -> Callable[P, R]:
    from numba import njit  # takes a while, and few need it

    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc"}, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # no place for a cache
        return njit(**options)(function)  # type: ignore[no-any-return]
