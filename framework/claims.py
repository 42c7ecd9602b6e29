"""Which call holds a backend or drafter: each has the rows of one call at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any

from draftwood.errors import InvalidInput

_lock = Lock()
_rows: dict[int, int] = {}  # by identity; the entries of a call go when it ends


@contextmanager
def claimed(parts: Mapping[str, Any], rows: int) -> Iterator[None]:
    """Hold `parts`, by what they are called, for a call of `rows` rows; safe between threads.

    Raises:
        InvalidInput: another call holds one of them.
    """
    with _lock:
        for name, part in parts.items():
            if id(part) in _rows:
                raise InvalidInput(
                    f"The {name} is already decoding {_rows[id(part)]} row(s) for another call; let it end, "
                    "or load the model into a second backend."
                )
        _rows.update((id(part), rows) for part in parts.values())
    try:
        yield
    finally:
        with _lock:
            for part in parts.values():
                _rows.pop(id(part), None)
