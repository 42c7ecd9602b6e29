"""Loops that run as machine code on the host."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

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

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal machine_code
        if machine_code is None:
            machine_code = _in_a_thread(_made, function)
        try:
            return machine_code(*args, **kwargs)
        except SystemError as error:
            _raise_heard(error)
            raise

    _FUNCTIONS[call] = function
    return call


_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {}
"""The function of Python that each function of `compiled` runs."""


def _in_a_thread(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Returns what `function` does. Ctrl-C comes elsewhere: the compiler would lose it, and its lock."""
    if threading.current_thread() is not threading.main_thread():
        return function(*args, **kwargs)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function, *args, **kwargs).result()


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
        made = njit(cache=True, **options)(function)
    except RuntimeError:  # no place for a cache
        made = njit(**options)(function)
    # numba calls it for arguments of every new kind.
    made.compile = functools.partial(_in_a_thread, made.compile)
    return cast("Callable[P, R]", made)
