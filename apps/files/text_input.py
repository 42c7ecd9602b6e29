"""Text from files and pipes: UTF-8, whatever mark it begins with."""

from __future__ import annotations

import codecs
import json
import re
from pathlib import Path

from draftwood.base.errors import InvalidInput

HALF = re.compile("[\ud800-\udfff]")
"""Half a character of UTF-16: no text, though JSON can name one and some programs write one."""
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)  # UTF-32's other begins as UTF-16's
_ESCAPE = re.compile("\\\\u([0-9a-fA-F]{4})|\\\\.|[\ud800-\udfff]")
_SAMPLE = 1024  # bytes


def read_text(file: Path, *, halves: bool = False) -> str:
    """The text of `file`, its lines ended as on any system; see `decoded`.

    Raises:
        InvalidInput: it cannot be read, or is no UTF-8.
    """
    try:
        content = file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{str(file)!r} cannot be read: {error.strerror or error}.") from error
    text = decoded(content, repr(str(file)), halves=halves)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def decoded(content: bytes, where: str, *, halves: bool = False) -> str:
    """UTF-8 `content` as text, without a byte order mark at its start.

    Args:
        content: the bytes.
        where: they come from, for messages.
        halves: keep halves of characters that are written as characters, for a caller that refuses the lines
            that have them.

    Raises:
        InvalidInput: it is something else.
    """
    if content.startswith(_MARKS) or _is_wide(content[:_SAMPLE]):
        raise InvalidInput(f"{where} is UTF-16 or UTF-32 text, not UTF-8; convert it first.")
    try:
        return content.removeprefix(codecs.BOM_UTF8).decode("utf-8", "surrogatepass" if halves else "strict")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        column = error.start - content.rfind(b"\n", 0, error.start)
        raise InvalidInput(
            f"{where} is not UTF-8 text (line {line}, byte {column}); convert it first."
        ) from error


def _is_wide(sample: bytes) -> bool:
    """Whether every other byte is zero, as in UTF-16 without its mark."""
    even, odd = sample[::2], sample[1::2]
    return len(sample) > 3 and any(some.count(0) == len(some) for some in (even, odd))


def half_character(line: str, field: str) -> int:
    """The column, counted from 1, of the first lone half of a character in a field of a line of JSON.

    Args:
        line: as it is in the file, where a half is an escape or a character; it has one.
        field: its name; where that is not found, or no half follows it, the first of the line counts.
    """
    columns, begins = _half_characters(line), line.find(json.dumps(field))
    return next((column for column in columns if column > begins), columns[0] if columns else 1)


def _half_characters(line: str) -> list[int]:
    """The columns of all of them; two escapes in a row may make a character."""
    columns, high, ends = list[int](), 0, -1
    for match in _ESCAPE.finditer(line):
        code = int(match[1], 16) if match[1] else ord(match[0][0])
        if match[1] and 0xDC00 <= code < 0xE000 and high and match.start() == ends:
            high = 0
            continue
        if high:
            columns.append(high)
        high = match.start() + 1 if match[1] and 0xD800 <= code < 0xDC00 else 0
        if 0xD800 <= code < 0xE000 and not high:
            columns.append(match.start() + 1)
        ends = match.end()
    return [*columns, high] if high else columns
