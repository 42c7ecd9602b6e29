"""Replaces functions of modules and classes for a while; a proof does so at every call of a sampler."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_INHERITED = object()


@contextlib.contextmanager
def replaced(functions: Iterable[tuple[Any, str, Callable[..., Any]]]) -> Iterator[None]:
    """Within it every function takes the place of that name of its owner, a module or a class.

    It does what `unittest.mock.patch.object` does for one function, in a tenth of the time for a hundred.
    """
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, function in functions:
            before.append((owner, name, vars(owner).get(name, _INHERITED)))
            setattr(owner, name, function)
        yield
    finally:
        for owner, name, earlier in reversed(before):
            if earlier is _INHERITED:
                delattr(owner, name)
            else:
                setattr(owner, name, earlier)


def named_as(function: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `wrapper` under the name of `function`; `functools.wraps` takes longer than most draws."""
    wrapper.__name__ = getattr(function, "__name__", wrapper.__name__)
    return wrapper
