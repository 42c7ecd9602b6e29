"""Files that are written whole or not at all, and never through a link.

An existing name may be a link that somebody else made: writing to it would change the file that the link
points to. So a file is written next to its name and then takes the name, which replaces a link instead of
following it, and links are refused before that.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from draftwood.base.errors import InvalidInput

_NEW = os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def check_writable(file: Path) -> None:
    """Raise `InvalidInput` where `file` cannot be written, before any work is done for it."""
    folder = file.absolute().parent
    _check_name(file)
    if not folder.is_dir():
        raise InvalidInput(f"The folder {str(folder)!r} does not exist; make it first.")
    if not os.access(folder, os.W_OK):
        raise InvalidInput(f"The folder {str(folder)!r} cannot be written to; choose another.")


def inner_folder(folder: Path) -> Path:
    """Make `folder`, which a program names inside a folder of the user, where it is missing.

    Raises:
        InvalidInput: it is a link or a file, or cannot be made.
    """
    if folder.is_symlink():
        raise _link(folder)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"The folder {str(folder)!r} cannot be made: {error.strerror or error}."
        ) from error
    return folder


def temporary_names(file: Path) -> str:
    """Returns the prefix of the temporary files that are renamed to `file`; a kill may leave one of them."""
    return f".{file.name}-"


def new_file(folder: Path, prefix: str, flags: int = os.O_WRONLY) -> tuple[int, Path]:
    """Open a new file of a random name in `folder`; its handle and its path.

    Raises:
        OSError: it cannot be made.
    """
    path = folder / f"{prefix}{secrets.token_hex(6)}"
    return os.open(path, flags | _NEW, 0o666), path


@contextmanager
def written_whole(file: Path, *, new: bool = False) -> Iterator[Path]:
    """A path to write to, whose file becomes `file` at the end of the block, unless the block raises.

    Args:
        file: the file to write; an older file of this name is replaced.
        new: refuse an older file instead.

    Raises:
        InvalidInput: it cannot be written, as on a full disk, or it is a link; with `new`, it exists.
    """
    _check_name(file)
    part: Path | None = None
    try:
        handle, part = new_file(file.parent, temporary_names(file))
        os.close(handle)
        yield part
        _synchronise(part)
        if new:
            take_name(part, file)
        else:
            os.replace(part, file)
    except BaseException as error:
        if part is not None:
            with suppress(OSError):
                part.unlink()
        if isinstance(error, FileExistsError):
            raise InvalidInput(f"{str(file)!r} is there already; name another file, or remove it.") from error
        if isinstance(error, OSError):
            raise InvalidInput(f"{str(file)!r} cannot be written: {error.strerror or str(error)}.") from error
        raise


def take_name(part: Path, file: Path) -> None:
    """Rename `part` to `file`, which is not to exist.

    Raises:
        FileExistsError: it does.
    """
    if os.name == "nt":
        os.rename(part, file)
        return
    try:
        os.link(part, file, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        os.close(os.open(file, os.O_WRONLY | _NEW, 0o666))
        os.replace(part, file)
    else:
        os.unlink(part)


def write_bytes(file: Path, chunks: Iterable[bytes], *, new: bool = False) -> None:
    """Write `chunks` to `file` whole or not at all; when this returns, they survive whatever happens.

    Raises:
        InvalidInput: as `written_whole`.
    """
    with written_whole(file, new=new) as part, part.open("wb") as out:
        out.writelines(chunks)


def write_text(file: Path, text: str) -> None:
    """Write `text` to `file` whole or not at all; see `write_bytes`."""
    # In a locale of another encoding, a file's name from the command line holds bytes as half characters.
    write_bytes(file, [text.encode("utf-8", "surrogateescape")])


def write_json(file: Path, content: Mapping[str, Any]) -> None:
    """Write `content` to `file` whole or not at all; see `write_bytes`."""
    write_text(file, json.dumps(content, allow_nan=False, indent=1) + "\n")


def write_by(file: Path, save: Callable[[Path], object]) -> None:
    """Let `save` write a file, which becomes `file`; see `written_whole`."""
    with written_whole(file) as part:
        save(part)


def _synchronise(file: Path) -> None:
    handle = os.open(file, os.O_RDWR | getattr(os, "O_BINARY", 0))
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _check_name(file: Path) -> None:
    """Refuse names that no file should replace: links, folders, devices."""
    if file.is_symlink():
        raise _link(file)
    if file.is_dir():
        raise InvalidInput(f"{str(file)!r} is a folder; name a file to write.")
    if file.exists() and not file.is_file():
        raise InvalidInput(f"{str(file)!r} is a device or a pipe; name an ordinary file to write.")


def _link(file: Path) -> InvalidInput:
    return InvalidInput(
        f"{str(file)!r} is a symbolic link, and nothing is written through one; remove the link, or name "
        "another."
    )
