"""Locks of backends and drafters: each decodes the rows of one call at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from threading import Lock
from typing import Any

import attrs

from draftwood.base.errors import InvalidInput


@attrs.frozen
class CallLock:
    """The backends, drafters and rows that one call uses.

    Attributes:
        parts: the identities of backends and drafters.
        rows: the rows of the call.
    """

    parts: frozenset[int]
    rows: int


_mutex = Lock()

active: dict[object, CallLock] = {}
"""The lock of every call. `active.pop(call, None)` releases it: one step, which no Ctrl-C cuts in two."""

_kept: dict[object, tuple[frozenset[int], Callable[[], None]]] = {}


def keep(hold: object, parts: Iterable[Any], release: Callable[[], None]) -> None:
    """Keep what `parts` hold after a call, until it is taken, or another call needs one of them.

    Args:
        hold: by which it is taken or dropped.
        parts: backends and drafters.
        release: called once, unless it is taken.
    """
    with _mutex:
        _kept[hold] = frozenset(map(id, parts)), release


def take(hold: object) -> bool:
    """Returns whether `hold` was still kept; from now on its states are the caller's to release."""
    return _kept.pop(hold, None) is not None


def drop(hold: object) -> None:
    """Release the states that `hold` keeps, if it still does."""
    if (kept := _kept.pop(hold, None)) is not None:
        kept[1]()


def acquire(call: object, parts: Mapping[str, Any], rows: int) -> None:
    """Lock `parts`, by what they are called, for a call of `rows` rows; safe between threads.

    What they were kept with after an earlier call is released.

    Raises:
        InvalidInput: another call uses one of them.
    """
    with _mutex:
        for name, part in parts.items():
            for other in active.values():
                if id(part) in other.parts:
                    raise InvalidInput(
                        f"The {name} is already decoding {other.rows} row(s) for another call; let it end, "
                        "or load the model into a second backend."
                    )
        active[call] = CallLock(frozenset(map(id, parts.values())), rows)
        drop_of(parts.values())


def drop_of(parts: Iterable[Any], *, but: object = None) -> None:
    """Release all that `parts` were kept with, except for what is kept by the hold `but`."""
    own = frozenset(map(id, parts))
    for hold, (others, _) in list(_kept.items()):
        if hold is not but and own & others:
            drop(hold)
