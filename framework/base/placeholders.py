"""Small files in the place of a large one, which a download left that did not fetch the content."""

from __future__ import annotations

from pathlib import Path

_LFS, _PAGES = b"version https://git-lfs", (b"<!doctype", b"<html", b"<?xml")


def placeholder(file: Path) -> str | None:
    """Returns what `file` is in place of its content, and the remedy; None for any other file.

    It never raises: a file that cannot be opened is another fault.
    """
    try:
        with file.open("rb") as opened:
            begin = opened.read(64).lstrip().lower()
    except OSError:
        return None
    if begin.startswith(_LFS):
        return "is a pointer of Git LFS; fetch its content with `git lfs pull`, or download it again"
    if begin.startswith(_PAGES):
        return "is a web page; download the file again, signed in if its repository asks for that"
    return None
