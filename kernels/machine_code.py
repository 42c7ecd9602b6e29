"""Loops that run as machine code on the host."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar

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

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        nonlocal machine_code
        if machine_code is not None:
            return machine_code(*args, **kwargs)
        # In a thread, where Ctrl-C does not come: the compiler would lose it. What other dtypes and layouts
        # need is compiled where they first come, which is rare.
        with ThreadPoolExecutor(1) as thread:
            made = thread.submit(_made, function).result()
            result = thread.submit(made, *args, **kwargs).result()
        machine_code = made
        return result

    return call


def _made(function: Callable[P, R]) -> Callable[P, R]:
    from numba import njit  # takes a while, and few need it

    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc"}, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # no place for a cache
        return njit(**options)(function)  # type: ignore[no-any-return]
