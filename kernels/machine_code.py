"""Loops that run as machine code on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any, ParamSpec, TypeVar

import numpy as np

_LAYOUT = 0x503
"""The flags of an array that code is compiled for: contiguous either way, aligned, writeable."""

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Returns `function`, which only takes arrays and numbers, compiled by numba on its first call.

    The code is kept on disk for the next process: next to the source, or in numba's folder for the user.
    Where neither can be written to, every process compiles again. Sums may be added in a different order. Use
    it for loops whose steps depend on earlier ones, such as a running sum that decides how to continue, or
    that take several sums in one pass: numpy and torch read an array once for each sum.

    It may call other compiled functions of the same file: the code on disk is made anew where that changes.
    """

    machine_code: Callable[P, R] | None = None
    known: set[tuple[Any, ...]] = set()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal machine_code
        # Arguments of the same kinds run the same code. Written out, as it is done for every call.
        found: list[Any] = []
        for one in args:
            if type(one) is np.ndarray:
                found.append((one.dtype, one.ndim, one.flags.num & _LAYOUT))
            else:
                found.append(type(one))
        kinds = tuple(found)
        if machine_code is not None and not kwargs and kinds in known:
            try:
                return machine_code(*args)  # type: ignore[call-arg]
            except SystemError as error:
                _raise_heard(error)
                raise
        # Compiled in a thread, where Ctrl-C does not come: the compiler would lose it, and its lock.
        with ThreadPoolExecutor(1) as thread:
            made = machine_code or thread.submit(_made, function).result()
            result: R = thread.submit(made, *args, **kwargs).result()
        machine_code = made
        if not kwargs:
            known.add(kinds)
        return result

    _FUNCTIONS[call] = function
    return call


_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
"""The function of Python that each function of `compiled` runs."""


def _raise_heard(error: SystemError) -> None:
    """Raise Ctrl-C, or what else a signal's handler raised inside machine code, as it is.

    numba makes arrays of results by a call of Python, and does not look at what that raises.
    """
    cause: BaseException | None = error
    while isinstance(cause, SystemError):
        cause = cause.__cause__
    if cause is not None:
        raise cause from None


def _made(function: Callable[P, R]) -> Callable[P, R]:
    from numba import njit  # takes a while, and few need it

    # Machine code calls machine code.
    known = function.__globals__
    named = {name: known.get(name) for name in function.__code__.co_names}
    called = {
        name: _made(_FUNCTIONS[one]) for name, one in named.items() if callable(one) and one in _FUNCTIONS
    }
    if called:
        closed = FunctionType(function.__code__, {**known, **called}, function.__name__)
        function = functools.update_wrapper(closed, function)

    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc"}, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # no place for a cache
        return njit(**options)(function)  # type: ignore[no-any-return]
