"""A console of rich that takes every string for text."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.text import Text

from draftwood.apps.terminal.shown import visible


class PlainConsole(Console):
    """A console that follows no markup and shows control characters as `draftwood.apps.terminal.shown` does.

    All strings that rich draws, in tables too, are made to `Text` in one place, which is the door. Whoever
    hands in a `Text` answers for it.
    """

    def __init__(self, *, stderr: bool = False, lines: bool = False) -> None:
        """
        Args:
            stderr: draw there instead of on stdout.
            lines: keep ends of lines and tabs in strings.
        """
        super().__init__(stderr=stderr, markup=False, emoji=False, highlight=False)
        self._lines = lines

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text, lines=self._lines), **{**options, "markup": False})
