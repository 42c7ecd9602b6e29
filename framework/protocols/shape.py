"""The shape of a strategy against its protocol: properties, methods, their names and their arguments."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator
from functools import cached_property
from types import FunctionType
from typing import Any

from draftwood.base.errors import InvalidInput
from draftwood.protocols import (
    ArrayPolicy,
    BatchPolicy,
    Drafter,
    LearningPolicy,
    StateBackend,
    TreePolicy,
    Verifier,
)

# Members without a default, which a class must define itself.
_REQUIRED: dict[type, tuple[str, ...]] = {
    StateBackend: ("prefill", "release", "extend", "commit", "lengths"),
    Drafter: ("prefill", "release", "distributions", "commit"),
    ArrayPolicy: ("grow_together",),
    LearningPolicy: ("grow", "first_state", "observe"),
    BatchPolicy: ("grow", "share"),
    TreePolicy: ("grow",),
    Verifier: ("verify",),
}


def check_shape(strategy: object) -> None:
    """Raise `InvalidInput` where a class derived from a protocol does not have its shape.

    A method that is missing or has another name, a method where the protocol has an attribute or the
    reverse, and a method that cannot be called with the protocol's arguments are told by name.
    """
    kind = type(strategy)
    for protocol, required in _REQUIRED.items():
        if protocol not in kind.__mro__:
            continue
        for name in required:
            if inspect.getattr_static(strategy, name, None) is inspect.getattr_static(protocol, name):
                close = difflib.get_close_matches(name, _own_names(kind, protocol), n=1)
                raise InvalidInput(
                    f"{kind.__name__} does not define {name!r}, which every {protocol.__name__} has; "
                    + (f"rename {close[0]!r} to it." if close else "define it.")
                )
        for name, declared in _members(protocol):
            _check_member(strategy, name, declared)


def _check_member(strategy: object, name: str, declared: Any) -> None:
    own = inspect.getattr_static(strategy, name, None)
    kind = type(strategy).__name__
    if isinstance(declared, FunctionType):
        if isinstance(own, property | cached_property) or (own is not None and not _is_method(own)):
            raise InvalidInput(f"{kind}.{name} is an attribute; make it a method, as in the protocol.")
        if isinstance(own, FunctionType) and own is not declared:
            _check_arguments(kind, name, own, declared, *_further(strategy, name))
    elif isinstance(own, FunctionType):
        raise InvalidInput(
            f"{kind}.{name} is a method and is read without a call; put @property above it, or make it an "
            "attribute."
        )


def _further(strategy: Any, name: str) -> tuple[list[str], list[str]]:
    """Returns arguments that a policy's declarations add to a method, by position and by keyword."""
    if TreePolicy not in type(strategy).__mro__ or not strategy.reads_row:
        return [], []
    if strategy.scope == "batch":
        return (["views"], []) if name == "share" else ([], [])
    return ([], ["view"]) if name == "grow" else ([], [])


def _check_arguments(
    kind: str,
    name: str,
    own: FunctionType,
    declared: FunctionType,
    further: list[str],
    named_further: list[str],
) -> None:
    """Raise unless the method can be called as its protocol is, with all arguments and these further ones."""
    positional: list[Any] = []
    by_keyword: dict[str, Any] = dict.fromkeys(named_further)
    for parameter in inspect.signature(declared).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            by_keyword[parameter.name] = None
        else:
            positional.append(parameter.name)
    positional += further
    try:
        inspect.signature(own).bind(*positional, **by_keyword)
    except TypeError as error:
        named = ", ".join([*positional[1:], *(f"{option}=" for option in by_keyword)])
        raise InvalidInput(
            f"{kind}.{name} cannot be called as {name}({named}), the form of the protocol ({error}); take "
            "these arguments."
        ) from None


def _members(protocol: type) -> Iterator[tuple[str, Any]]:
    """The attributes, properties and methods that a protocol declares, itself or by its parts."""
    for base in protocol.__mro__:
        if base.__module__.startswith("draftwood.protocols"):
            for name in inspect.get_annotations(base):
                yield name, None
            for name, value in vars(base).items():
                if isinstance(value, FunctionType | property) and name[0] != "_":
                    yield name, value


def _own_names(kind: type, protocol: type) -> list[str]:
    """The public names that a class adds to its protocol."""
    known = {name for name, _ in _members(protocol)}
    return sorted(
        {name for base in kind.__mro__ for name in vars(base) if name[0] != "_" and name not in known}
    )


def _is_method(value: Any) -> bool:
    return callable(value) or isinstance(value, staticmethod | classmethod)
