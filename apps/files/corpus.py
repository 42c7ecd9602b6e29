"""Documents from a user's files of text."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from draftwood.apps.files.text_input import HALF, decoded
from draftwood.apps.terminal.cli_errors import first_line
from draftwood.base.errors import InvalidInput
from draftwood.zoo import text

_FIELDS = ("text", "prompt", "question", "turns")
_ENDINGS = (".txt", ".txt.gz", ".jsonl")


def is_text(file: Path) -> bool:
    """Whether `documents` reads files of this name."""
    return file.name.endswith(_ENDINGS)


def documents(file: Path) -> list[str]:
    """The documents of a .txt or .txt.gz file, between lines `<|endoftext|>`, or the lines of a .jsonl file.

    Raises:
        InvalidInput: it cannot be read; the message names the file, and the line where there is one.
    """
    with readable(file):
        content = decoded(text.content(file), repr(str(file)))
        return list(_lines(file, content)) if file.suffix == ".jsonl" else text.split(content)


@contextmanager
def readable(file: Path) -> Iterator[None]:
    """`InvalidInput` for what can be wrong with `file` while it is read."""
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise InvalidInput(f"{str(file)!r} is corrupt ({first_line(error)}); make it again.") from error
    except OSError as error:
        raise InvalidInput(f"{str(file)!r} cannot be read: {error.strerror}.") from error


def _lines(file: Path, content: str) -> Iterator[str]:
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"Line {number} of {str(file)!r}"
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{where} is not JSON; give one object a line.") from error
        fields = entry if isinstance(entry, dict) else {}
        found = next((fields[field] for field in _FIELDS if field in fields), None)
        texts: list[Any] = found if isinstance(found, list) else [found]
        if not all(isinstance(one, str) for one in texts):
            raise InvalidInput(f"{where} has no text; put it into a field {' or '.join(_FIELDS)}.")
        if any(HALF.search(one) for one in texts):
            raise InvalidInput(f"{where} holds a lone surrogate, half a character of UTF-16; write it anew.")
        yield "\n".join(texts)
