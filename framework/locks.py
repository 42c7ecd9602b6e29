"""Which call uses a backend or drafter: each serves the rows of one call at a time."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any

import attrs

from draftwood.errors import InvalidInput


@attrs.frozen
class CallLock:
    """What one call uses.

    Attributes:
        parts: the identities of backends and drafters.
        rows: of the call.
    """

    parts: frozenset[int]
    rows: int


_mutex = Lock()

active: dict[object, CallLock] = {}
"""The lock of every call. `active.pop(call, None)` releases it: one step, which no Ctrl-C cuts in two."""


def acquire(call: object, parts: Mapping[str, Any], rows: int) -> None:
    """Lock `parts`, by what they are called, for a call of `rows` rows; safe between threads.

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
