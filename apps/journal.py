"""Lines that are on disk as soon as they are added, in a file that a killed run leaves to the next one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from draftwood.errors import InvalidInput


def append(file: Path, record: Mapping[str, Any]) -> None:
    """Write `record` as the next line; when this returns, it survives whatever happens.

    Raises:
        InvalidInput: it cannot be written, as on a full disk; the lines before it are on disk.
    """
    words = json.dumps(record, allow_nan=False).encode() + b"\n"
    try:
        with file.open("ab") as out:
            out.write(words)
            out.flush()
            os.fsync(out.fileno())
    except OSError as error:
        raise InvalidInput(
            f"{str(file)!r} cannot be written: {error.strerror or error}; make room and run the same again, "
            "which goes on from here."
        ) from error


def lock(file: IO[bytes], name: Path) -> None:
    """Keep other processes out of `name` until `file` is closed, where the system can do so.

    Raises:
        InvalidInput: another process has it.
    """
    try:
        import fcntl
    except ImportError:  # Windows locks bytes against reading too, which would shut out our own reports
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidInput(f"Another process writes to {str(name)!r}; wait for it.") from None


def drop_unfinished(file: Path) -> None:
    """Cut off a last line that was not written to its end."""
    content = file.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(file, whole)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """What differs between two descriptions of a run, each as a piece of a sentence."""
    # The old one went through JSON, where 0 and 0.0 are two things and equal.
    return [
        f"{name} was {_short(old.get(name))} and is {_short(new.get(name))}"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name)
    ]


def listed(odd: list[str]) -> str:
    """The first few of many differences."""
    return "; ".join(odd[:3]) + (f", and {len(odd) - 3} more" if len(odd) > 3 else "")


def _short(value: Any) -> str:
    words = json.dumps(value)
    return words if len(words) <= 60 else f"{words[:57]}..."
