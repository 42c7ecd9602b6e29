"""The one door to the terminal for text that is not our own.

What is in a file, comes from a server or is written by a model may hold escape codes that move the cursor,
clear lines or recolour them, marks that turn the direction of text round, and markup that rich would follow.
Here all of it becomes text. `PlainConsole` is the same door for what rich draws.
"""

from __future__ import annotations

import sys
import unicodedata

import typer

# Control characters, halves of characters, and ends of lines that are none of ours.
_HIDDEN = frozenset({"Cc", "Cs", "Zl", "Zp"})
_TURNING = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Marks that turn the direction of the text around them."""
_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def visible(text: str, *, lines: bool = False) -> str:
    """`text` with an escape such as `\\x1b` in place of every character that steers a terminal.

    Args:
        text: any.
        lines: keep ends of lines and tabs, of a text that is shown by itself.
    """
    if text.isprintable():
        return text
    return "".join(one if lines and one in "\n\t" else _visible(one) for one in text)


def _visible(one: str) -> str:
    if one not in _TURNING and unicodedata.category(one) not in _HIDDEN:
        return one
    code = ord(one)
    return _SHORT.get(one) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def say(message: str = "") -> None:
    """Write a line to stdout."""
    typer.echo(visible(message))


def to_stderr(message: str) -> None:
    """Write a line to stderr, where it does not mix with what a program reads."""
    typer.echo(visible(message), err=True)


def write_out(text: str) -> None:
    """Write a model's text to stdout: as it is to a file or a pipe, and to a terminal through the door."""
    sys.stdout.write(visible(text, lines=True) if sys.stdout.isatty() else text)
    sys.stdout.flush()
