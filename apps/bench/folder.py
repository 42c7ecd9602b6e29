"""The results folder: what the run is, and every finished cell as one line that is on disk at once."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from draftwood.apps import journal, trace
from draftwood.apps.bench.schema import check_cell, check_run
from draftwood.apps.machine import device_name, versions
from draftwood.apps.models import find_device
from draftwood.errors import InvalidInput
from draftwood.json_text import parse_json

FORMAT, VERSION = "draftwood-bench", 2
RUN, CELLS = "run.json", "cells.jsonl"
_SAME = ("configuration", "versions", "hardware")


@attrs.define
class Folder:
    """An open results folder.

    Attributes:
        path: where it is.
        run: what `run.json` says.
        cells: the finished cells by key.
    """

    path: Path
    run: dict[str, Any]
    cells: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    def add(self, key: str, cell: Mapping[str, Any]) -> None:
        """Write a finished cell; when this returns, it survives whatever happens.

        Raises:
            InvalidInput: it cannot be written, as on a full disk; the cells before it are on disk.
        """
        record = {"key": key, **cell}
        journal.append(self.path / CELLS, record)
        self.cells[key] = record


def describe(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """What `run.json` says of a run with this configuration, here and now."""
    device = find_device(configuration["device"] or None)
    return {
        "format": FORMAT,
        "version": VERSION,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "hardware": {
            "device": device_name(device),
            "machine": platform.machine(),
            "system": platform.system(),
        },
        "configuration": dict(configuration),
    }


@contextmanager
def opened(path: Path, run: dict[str, Any]) -> Iterator[Folder]:
    """The folder for `run`, new or to be continued; nobody else can open it meanwhile (but on Windows).

    Raises:
        InvalidInput: it holds another run (the message says what differs), something else, or is in use.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"The folder {str(path)!r} cannot be made: {error.strerror or error}.") from error
    if not os.access(path, os.W_OK):
        raise InvalidInput(f"The folder {str(path)!r} cannot be written to; choose another with --to.")
    begun = (path / CELLS).exists() and b"\n" in (path / CELLS).read_bytes()
    if not (path / RUN).exists():
        if any(not _is_empty_start(one) for one in path.iterdir()):
            raise InvalidInput(
                f"The folder {str(path)!r} holds no run of bench but other files; choose another."
            )
    elif begun:
        _check_same(path, stored(path), run)
    else:
        stored(path)  # one that failed before its first cell gives way; anyone else's file does not
    with (path / CELLS).open("ab") as file:
        journal.lock(file, path)
        if not begun:
            trace.write_json(path / RUN, run)
        journal.drop_unfinished(path / CELLS)
        yield Folder(path, stored(path), finished(path))


def _is_empty_start(file: Path) -> bool:
    """Whether a run that was killed before its first cell may have left this file."""
    return (file.name == CELLS and not file.stat().st_size) or file.name.startswith(f".{RUN}-")


def stored(path: Path) -> dict[str, Any]:
    """What `run.json` says.

    Raises:
        InvalidInput: there is none, it is damaged, or another version of draftwood wrote it.
    """
    file = path / RUN
    try:
        run = parse_json(file.read_bytes())
        if not isinstance(run, dict) or run.get("format") != FORMAT:
            raise InvalidInput(f"{str(file)!r} is not of `draftwood bench`; name another folder with --to.")
        if (version := run.get("version")) != VERSION:
            raise InvalidInput(
                f"{str(file)!r} is of version {version!r:.40}, and this draftwood reads version {VERSION}; "
                "measure again with `draftwood bench --to` another folder."
            )
        check_run(run)
    except OSError as error:
        raise InvalidInput(f"{str(path)!r} holds no run of bench: {RUN} cannot be read.") from error
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f"{str(file)!r} is damaged ({error}); choose another folder.") from error
    return run


def _check_same(path: Path, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    """Raise `InvalidInput` with what differs unless both describe one run."""
    odd = [words for part in _SAME for words in journal.differences(old[part], new[part])]
    if odd:
        raise InvalidInput(
            f"{str(path)!r} holds another run: {journal.listed(odd)}; name another folder with --to."
        )


def finished(path: Path) -> dict[str, dict[str, Any]]:
    """The cells on disk by key.

    Raises:
        InvalidInput: a line that is no cell; the message names it.
    """
    file = path / CELLS
    if not file.exists():
        return {}
    cells: dict[str, dict[str, Any]] = {}
    *lines, _ = file.read_bytes().split(b"\n")  # what is behind the last newline is not finished
    for number, line in enumerate(lines, start=1):
        try:
            cell = parse_json(line)
            check_cell(cell)
        except ValueError as error:
            raise InvalidInput(
                f"{str(file)!r}, line {number}: not a cell ({error}); delete the line to measure it again."
            ) from error
        cells[cell["key"]] = cell
    return cells
