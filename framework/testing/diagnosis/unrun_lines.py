"""Finds the lines of a strategy's own code that did not run while it was checked."""

from __future__ import annotations

import ast
import dis
import inspect
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from types import CodeType, FrameType, FunctionType
from typing import Any

METHODS = ("grow", "observe", "first_state", "verify", "verify_rows")
"""Methods in which a law can be broken."""


class LineWatch:
    """Records the lines that run inside it, of the methods of `kind` and of their helpers in the class.

    Lines that only raise are left out. Where something else traces already, such as a debugger, nothing is
    noted and `unrun` is empty.
    """

    def __init__(self, kind: type) -> None:
        self._ran: dict[CodeType, set[int]] = {}
        self._raises: set[int] = set()
        self._watches = sys.gettrace() is None
        for name, value in vars(kind).items():
            function = getattr(value, "__func__", value)
            if isinstance(function, FunctionType) and (name in METHODS or not name.startswith("__")):
                self._ran |= {code: set[int]() for code in _codes(function.__code__)}
                self._raises |= _raising(function)

    def __enter__(self) -> LineWatch:
        if self._watches:
            sys.settrace(self._trace)
            threading.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        if self._watches:
            sys.settrace(None)
            threading.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if (lines := self._ran.get(frame.f_code)) is None:
            return None

        def local(frame: FrameType, event: str, _: Any) -> Any:
            if event == "line":
                lines.add(frame.f_lineno)
            return local

        return local

    @property
    def unrun(self) -> list[int]:
        """The lines that never ran, ascending; of a method that never ran at all none is named."""
        if not self._watches:
            return []
        missing: set[int] = set()
        for code, ran in self._ran.items():
            if ran:
                own = {line for _, line in dis.findlinestarts(code) if line is not None}
                missing |= own - ran - {code.co_firstlineno} - self._raises
        return sorted(missing - {line for ran in self._ran.values() for line in ran})


def as_ranges(lines: Sequence[int]) -> str:
    """Lines in words, such as `12-14 and 20`."""
    ranges: list[list[int]] = []
    for line in lines:
        if ranges and line <= ranges[-1][1] + 1:
            ranges[-1][1] = line
        else:
            ranges.append([line, line])
    words = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _raising(function: FunctionType) -> set[int]:
    """Lines of `raise` statements, counted as in the function's file."""
    try:
        source, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(source)))
    except (OSError, SyntaxError, TypeError):
        return set()
    return {
        line + first - 1
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
