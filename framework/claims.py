"""Which call holds a backend or drafter: each has the rows of one call at a time."""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock
from typing import Any

import attrs

from draftwood.errors import InvalidInput


@attrs.frozen
class Claim:
    """What a call holds.

    Attributes:
        parts: the identities of backends and drafters.
        rows: of the call.
    """

    parts: frozenset[int]
    rows: int


_lock = Lock()

held: dict[object, Claim] = {}
"""The claim of every call. `held.pop(call, None)` gives it back: one step, which no Ctrl-C cuts in two."""


def claim(call: object, parts: Mapping[str, Any], rows: int) -> None:
    """Hold `parts`, by what they are called, for a call of `rows` rows; safe between threads.

    Raises:
        InvalidInput: another call holds one of them.
    """
    with _lock:
        for name, part in parts.items():
            for other in held.values():
                if id(part) in other.parts:
                    raise InvalidInput(
                        f"The {name} is already decoding {other.rows} row(s) for another call; let it end, "
                        "or load the model into a second backend."
                    )
        held[call] = Claim(frozenset(map(id, parts.values())), rows)
