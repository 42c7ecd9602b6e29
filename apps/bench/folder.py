"""The results folder: what the run is, and every finished cell as one line that is on disk at once."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import attrs

from draftwood.apps.bench.schema import check_cell, check_run
from draftwood.apps.files import journal
from draftwood.apps.files.journal import Journal
from draftwood.apps.files.journal_work import Work
from draftwood.apps.files.machine import device_name, versions
from draftwood.apps.models.by_name import find_device
from draftwood.base.errors import InvalidInput
from draftwood.base.json_text import parse_json
from draftwood.base.whole_files import temporary_names, write_json

FORMAT, VERSION = "draftwood-bench", 3
READ = (2, VERSION)
"""The versions that a report shows; cells of version 2 do not say which weights they are of."""
RUN, CELLS = "run.json", "cells.jsonl"
_OTHER = "name another folder with --to"


@attrs.define
class Folder:
    """An open results folder.

    Attributes:
        path: where it is.
        run: what `run.json` says, which is the first line of the cells too.
        journal: the cells' file.
        cells: the finished cells by key.
    """

    path: Path
    run: dict[str, Any]
    journal: Journal
    cells: dict[str, dict[str, Any]] = attrs.field(factory=dict)

    def add(self, key: str, cell: Mapping[str, Any]) -> None:
        """Write a finished cell; when this returns, it survives whatever happens.

        Raises:
            InvalidInput: it cannot be written, as on a full disk; the cells before it are on disk.
        """
        record = {"key": key, **cell}
        self.journal.append(record)
        self.cells[key] = record


def describe(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the content of `run.json` for a run with this configuration, here and now."""
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

    A folder of another run gives way where that has not finished a cell.

    Raises:
        InvalidInput: it holds another run (the message says what differs), something else, or is in use.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"The folder {str(path)!r} cannot be made: {error.strerror or error}.") from error
    if not os.access(path, os.W_OK):
        raise InvalidInput(f"The folder {str(path)!r} cannot be written to; choose another with --to.")
    old = stored(path) if os.path.lexists(path / RUN) else None
    if old is None and any(not _is_left_behind(one) for one in path.iterdir()):
        raise InvalidInput(f"The folder {str(path)!r} holds no run of bench but other files; choose another.")
    if old is not None and old["version"] != VERSION:
        raise InvalidInput(
            f"{str(path / RUN)!r} is of version {old['version']}, whose cells do not name their weights: it "
            f"can be shown (--report) but not continued; {_OTHER}."
        )
    described = {name: value for name, value in run.items() if name not in ("format", "version")}
    work = Work(
        format=FORMAT,
        version=VERSION,
        program="draftwood bench",
        description=described,
        same=("configuration", "versions", "hardware"),
        remedy=_OTHER,
    )
    with journal.opened(path / CELLS, work) as of_cells:
        if old != of_cells.first:
            if old is not None and not of_cells.is_empty:
                raise _two_runs(path)
            write_json(path / RUN, of_cells.first)
        yield Folder(path, of_cells.first, of_cells, _cells(path, of_cells))


def _two_runs(path: Path) -> InvalidInput:
    return InvalidInput(
        f"{RUN} and the first line of {CELLS} in {str(path)!r} belong to two runs; put back the right one, "
        f"or {_OTHER}."
    )


def _is_left_behind(file: Path) -> bool:
    """Whether a run that was killed as it began may have left this file."""
    return file.name == CELLS or file.name.startswith(
        (temporary_names(Path(RUN)), temporary_names(Path(CELLS)))
    )


def stored(path: Path) -> dict[str, Any]:
    """Returns the content of `run.json`.

    Raises:
        InvalidInput: there is none, it is damaged, or another version of draftwood wrote it.
    """
    file = path / RUN
    try:
        run = parse_json(_content(file))
        if not isinstance(run, dict) or run.get("format") != FORMAT:
            raise InvalidInput(f"{str(file)!r} was not written by `draftwood bench`; {_OTHER}.")
        if (version := run.get("version")) not in READ:
            raise InvalidInput(
                f"{str(file)!r} is of version {version!r:.40}, and this draftwood reads versions "
                f"{' and '.join(map(str, READ))}; measure again with `draftwood bench --to` another folder."
            )
        check_run(run)
    except FileNotFoundError as error:
        raise InvalidInput(f"{str(path)!r} holds no run of bench: {RUN} cannot be read.") from error
    except InvalidInput:
        raise
    except ValueError as error:
        raise InvalidInput(f"{str(file)!r} is damaged ({error}); choose another folder.") from error
    return run


def finished(path: Path) -> dict[str, dict[str, Any]]:
    """The cells on disk by key.

    Raises:
        InvalidInput: a line that is no cell; the message names it. Or `run.json` is of another run.
    """
    try:
        content = _content(path / CELLS)
    except FileNotFoundError:
        return {}
    *lines, _ = content.split(b"\n")  # what follows the last newline is not finished
    first = 0
    if (run := stored(path))["version"] == VERSION:
        first = 1
        try:
            own = parse_json(lines[0]) if lines else None
        except ValueError:
            own = None
        if own != run:
            raise _two_runs(path)
    return _read(path, enumerate(lines[first:], start=first + 1))


def _cells(path: Path, of_cells: Journal) -> dict[str, dict[str, Any]]:
    return _read(path, ((number, line) for number, _, line in of_cells.records()))


def _read(path: Path, lines: Iterable[tuple[int, bytes]]) -> dict[str, dict[str, Any]]:
    """Cells by key, from lines with their numbers."""
    cells: dict[str, dict[str, Any]] = {}
    for number, line in lines:
        try:
            cell = parse_json(line)
            check_cell(cell)
            if cell["key"] in cells:
                raise ValueError("it is there twice")
        except ValueError as error:
            raise InvalidInput(
                f"{str(path / CELLS)!r}, line {number}: not a cell ({error}); delete the line to measure it "
                "again."
            ) from error
        cells[cell["key"]] = cell
    return cells


def _content(file: Path) -> bytes:
    """Returns the content of an ordinary file; links are not followed.

    Raises:
        FileNotFoundError: there is none.
    """
    handle = journal.open_without_links(file, _OTHER)
    if handle is None:
        raise FileNotFoundError(file)
    with os.fdopen(handle, "rb") as content:
        return content.read()
