"""Journals: files of JSON lines that a run which ended early leaves to the next one."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import attrs

from draftwood.apps.files.journal_work import Work
from draftwood.base.errors import InvalidInput
from draftwood.base.whole_files import new_file, take_name, temporary_names

_LONGEST_FIRST_LINE = 2**24  # bytes
_CHUNK = 2**16  # bytes
_BINARY = getattr(os, "O_BINARY", 0)  # of Windows, which lacks the other two
_APPEND = os.O_RDWR | os.O_APPEND | _BINARY
# Opening a pipe would wait for its other end.
_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_ATTEMPTS = 20  # to open a name under which files come and go


class Place(NamedTuple):
    """Where a record is in its journal: the byte at which its line begins, and the bytes of it."""

    begins: int
    size: int


@attrs.define(eq=False)
class Journal:
    """An open journal, to which no other process can write meanwhile.

    Its first line says of what work it is, and every other line is a record. A file is changed only once its
    first line was found to be of this work; a last line that was cut in two goes when the next record comes.

    Attributes:
        path: where it is.
        first: the content of the first line.
        is_new: whether this run made it.
    """

    path: Path
    first: dict[str, Any]
    is_new: bool
    _handle: int
    _records: int  # byte at which the first record begins
    _end: int  # of the last whole line
    _size: int

    @property
    def is_empty(self) -> bool:
        """Whether it has no record."""
        return self._end == self._records

    def records(self) -> Iterator[tuple[int, Place, bytes]]:
        """Yields the line number, the place, and the line of every record."""
        number = 1
        for begins, line in _lines(self._handle, self._records):
            if begins >= self._end:
                return
            yield (number := number + 1), Place(begins, len(line)), line

    def line(self, place: Place) -> bytes:
        """The line of a record."""
        return _read(self._handle, place.size, place.begins)

    def append(self, record: Mapping[str, Any]) -> Place:
        """Write `record` as the next line; when this returns, it survives whatever happens.

        Returns:
            Its place.

        Raises:
            InvalidInput: it cannot be written, as on a full disk; the lines before it are on disk. Or
                another program has written to the file.
        """
        words = json.dumps(record, allow_nan=False).encode() + b"\n"
        begins = self._end
        # Where a file system has no locks, a second writer shows by what it wrote.
        if os.fstat(self._handle).st_size != self._size:
            raise InvalidInput(
                f"{str(self.path)!r} was written to by another program; end that one, and run the same again."
            )
        try:
            self._cut(begins)
            _write(self._handle, words)
        except OSError as error:
            with suppress(OSError):
                self._cut(begins)
                self._size = begins
            raise InvalidInput(
                f"{str(self.path)!r} cannot be written: {error.strerror or error}; make room and repeat the "
                "command, which continues from here."
            ) from error
        self._end = self._size = begins + len(words)
        return Place(begins, len(words))

    def _cut(self, end: int) -> None:
        if os.fstat(self._handle).st_size > end:
            os.ftruncate(self._handle, end)

    def remove(self) -> None:
        """Take the file away; its lines are somewhere else by now."""
        if os.name == "nt":  # which removes no file that is open
            self.close()
        if os.name == "nt" or _is_at(self._handle, self.path):
            self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let other processes write."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1


@contextmanager
def opened(path: Path, work: Work) -> Iterator[Journal]:
    """The journal of `work` at `path`, new or to be continued.

    Raises:
        InvalidInput: there is something else, which is left as it is; another process writes to it; or it
            cannot be made.
    """
    journal = _opened(path, work)
    try:
        yield journal
    finally:
        journal.close()


def check(path: Path, work: Work) -> bool:
    """Whether there is a journal of `work` at `path`; changes nothing.

    Raises:
        InvalidInput: there is something else, a journal of other work that has no record included.
    """
    handle = open_without_links(path, work.remedy)
    if handle is None:
        return False
    try:
        first, _ = _first(handle, path, work)
        work.check(first, path)
    finally:
        os.close(handle)
    return True


def open_without_links(path: Path, remedy: str, *, write: bool = False) -> int | None:
    """A handle of the ordinary file at `path`, to read or to append too; None where there is nothing.

    Raises:
        InvalidInput: it is a link, a folder or a device, or cannot be opened.
    """
    if path.is_symlink():
        raise InvalidInput(
            f"{str(path)!r} is a symbolic link, and links are not followed here; remove it, or {remedy}."
        )
    try:
        handle = os.open(path, (_APPEND if write else os.O_RDONLY | _BINARY) | _PLAIN)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidInput(f"{str(path)!r} cannot be opened: {error.strerror or error}; {remedy}.") from error
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise InvalidInput(f"{str(path)!r} is no ordinary file; move it away, or {remedy}.")
    return handle


def _opened(path: Path, work: Work) -> Journal:
    for _ in range(_ATTEMPTS):
        handle = open_without_links(path, work.remedy, write=True)
        if handle is None:
            with suppress(FileExistsError):  # another process was quicker
                return _created(path, work)
            continue
        try:
            _lock(handle, path)
            if _is_at(handle, path):  # else a run took it away as it ended
                return _continued(handle, path, work)
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)
    raise InvalidInput(f"Other processes make {str(path)!r} and remove it, again and again; end them.")


def _continued(handle: int, path: Path, work: Work) -> Journal:
    first, records = _first(handle, path, work)
    end = _end_of_lines(handle)
    try:
        work.check(first, path)
    except InvalidInput:
        if end > records or not work.gives_way:
            raise
        journal = _created(path, work, instead=True)
        os.close(handle)  # it was locked until the new one had its name
        return journal
    return Journal(path, first, False, handle, records, end, os.fstat(handle).st_size)


def _created(path: Path, work: Work, *, instead: bool = False) -> Journal:
    """A new journal: locked before anybody can see it, and never without its first line.

    Args:
        path: where.
        work: what it is of.
        instead: of a file at `path`, which this process has locked.

    Raises:
        FileExistsError: there is a file, and it is not `instead` of it.
        InvalidInput: it cannot be written.
    """
    first = work.first_line
    words = json.dumps(first, allow_nan=False).encode() + b"\n"
    handle, part = -1, None
    try:
        handle, part = new_file(path.parent, temporary_names(path), os.O_RDWR | os.O_APPEND)
        _lock(handle, path)
        _write(handle, words)
        if os.name == "nt":  # which renames no file that is open
            os.close(handle)
            handle = -1
        if instead:
            os.replace(part, path)
        else:
            take_name(part, path)
        if os.name == "nt":
            handle = os.open(path, _APPEND)
    except BaseException as error:
        if handle >= 0:
            os.close(handle)
        if part is not None:
            with suppress(OSError):
                part.unlink()
        if isinstance(error, OSError) and not isinstance(error, FileExistsError):
            raise InvalidInput(
                f"{str(path)!r} cannot be written: {error.strerror or error}; make room, or {work.remedy}."
            ) from error
        raise
    return Journal(path, first, True, handle, len(words), len(words), len(words))


def _first(handle: int, path: Path, work: Work) -> tuple[dict[str, Any], int]:
    """The content of the first line, and the byte at which the second begins."""
    line = b""
    while b"\n" not in line and len(line) < _LONGEST_FIRST_LINE:
        if not (more := _read(handle, _CHUNK, len(line))):
            break
        line += more
    line = line[: line.find(b"\n") + 1]
    return work.read(line, path), len(line)


def _lines(handle: int, begins: int) -> Iterator[tuple[int, bytes]]:
    """Lines from the byte `begins` on, each with the byte at which it begins; the last may lack its end."""
    rest, at = b"", begins
    while chunk := _read(handle, _CHUNK, at):
        at += len(chunk)
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield begins, line + b"\n"
            begins += len(line) + 1
    if rest:
        yield begins, rest


def _end_of_lines(handle: int) -> int:
    """The byte after the last end of a line."""
    at = os.fstat(handle).st_size
    while at > 0:
        begins = max(at - _CHUNK, 0)
        if (found := _read(handle, at - begins, begins).rfind(b"\n")) >= 0:
            return begins + found + 1
        at = begins
    return 0


def _read(handle: int, size: int, at: int) -> bytes:
    if hasattr(os, "pread"):
        return os.pread(handle, size, at)
    os.lseek(handle, at, os.SEEK_SET)
    return os.read(handle, size)


def _write(handle: int, words: bytes) -> None:
    rest = memoryview(words)
    while rest:
        rest = rest[os.write(handle, rest) :]
    os.fsync(handle)


def _is_at(handle: int, path: Path) -> bool:
    """Whether the open file still has the name `path`."""
    try:
        return os.path.samestat(os.fstat(handle), os.lstat(path))
    except FileNotFoundError:
        return False


def _lock(handle: int, path: Path) -> None:
    """Keep other processes out of a file until its handle is closed, where the system can do so.

    Raises:
        InvalidInput: another process has it.
    """
    try:
        import fcntl
    except ImportError:  # Windows locks bytes against reading too, which would shut out our own reports
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise InvalidInput(f"Another process writes to {str(path)!r}; wait for it.") from None
    except OSError:  # a file system without locks; `append` sees a second writer by what it wrote
        return
