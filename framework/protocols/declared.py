"""Attributes that a strategy must declare; one written for another draftwood is refused in a sentence."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

from draftwood.base.errors import InvalidInput
from draftwood.protocols import Drafter, LearningPolicy, TreePolicy, Verifier

_KINDS: dict[type, str] = {Drafter: "drafter", TreePolicy: "policy", Verifier: "verifier"}
# Members that protocols once had, and the remedy for a strategy that still has one.
_GONE: dict[tuple[type, str], str] = {
    (TreePolicy, "grow_rows"): (
        "`grow` is the only form since then, and `TreeBuilder.open` has children drawn for all rows; drop it"
    ),
    (TreePolicy, "planned_trees"): (
        "a plan is announced with `TreeBuilder.open(plan=...)` since then, and `grow` makes the tree; drop it"
    ),
    (TreePolicy, "local"): (
        "`adaptive` means more since then: set it to True where the number of a node's children may depend "
        "on their tokens or on what was drawn below them, and drop `local`"
    ),
    (Verifier, "local"): (
        "no policy says any more whether its branches grow apart; judge every tree without that, and drop it"
    ),
}


def check_declared(strategy: object, protocol: type) -> None:
    """Raise `InvalidInput` where `strategy` lacks a member of `protocol`, or has one that no longer exists.

    Args:
        strategy: an instance.
        protocol: `Drafter`, `TreePolicy` or `Verifier`.
    """
    name, kind = type(strategy).__name__, _KINDS[protocol]
    for asked in _asked(protocol):
        if not _has(strategy, asked):
            raise InvalidInput(
                f"{name} has no {asked!r}, which every {kind} has; derive it from draftwood."
                f"{protocol.__name__} and add it."
            )
    for (of, gone), remedy in _GONE.items():
        if of is protocol and isinstance(inspect.getattr_static(strategy, gone, None), bool | FunctionType):
            raise InvalidInput(
                f"{name} declares {gone!r}, as a {kind} for an older draftwood does: {remedy}."
            )
    learning = LearningPolicy in type(strategy).__mro__ or getattr(strategy, "learns", False)
    if protocol is TreePolicy and not learning and _has(strategy, "observe"):
        raise InvalidInput(
            f"{name} has observe() but does not declare that it learns, as was usual in an older draftwood; "
            "derive it from draftwood.LearningPolicy, where observe() gives the next state."
        )


def _asked(protocol: type) -> Iterator[str]:
    """The attributes and methods of a protocol."""
    yield from protocol.__annotations__
    yield from (
        name for name, value in vars(protocol).items() if inspect.isfunction(value) and name[0] != "_"
    )


def _has(strategy: Any, name: str) -> bool:
    # Looked up without running a property; what passes attributes on, as a wrapper does, is asked itself.
    return inspect.getattr_static(strategy, name, None) is not None or hasattr(strategy, name)
