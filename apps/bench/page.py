"""A page as Markdown or as one HTML file; every text that is put on it is escaped here."""

from __future__ import annotations

import base64
import html
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

import attrs

from draftwood.apps.terminal.shown import visible

_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.25rem; margin-top: 2.5rem; } h3 { font-size: 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; }
th, td { padding: 0.25rem 0.6rem 0.25rem 0; text-align: right; white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
td.words { text-align: left; white-space: normal; }
th { border-bottom: 1px solid; } tr + tr td { border-top: 1px solid #8884; }
pre { padding: 0.75rem; background: #8882; white-space: pre-wrap; overflow-wrap: anywhere; }
p { overflow-wrap: anywhere; }
img { max-width: 100%; height: auto; background: white; }
"""


class Page(ABC):
    """A page that is written from top to bottom."""

    @abstractmethod
    def heading(self, text: str, level: int) -> None:
        """Add a heading of level 1 to 3."""

    @abstractmethod
    def paragraph(self, text: str) -> None:
        """Add a paragraph."""

    @abstractmethod
    def code(self, text: str) -> None:
        """Add text that is shown as it is, such as a command."""

    @abstractmethod
    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> None:
        """Add a table; with `words` all columns but the first hold sentences, else figures."""

    @abstractmethod
    def image(self, file: Path, alt: str) -> None:
        """Add a PNG file, which lies in a folder next to the page."""

    @abstractmethod
    def text(self) -> str:
        """Returns the finished page."""


@attrs.define
class MarkdownPage(Page):
    """A page in Markdown, which links its images."""

    _parts: list[str] = attrs.field(factory=list, init=False)

    def heading(self, text: str, level: int) -> None:
        self._parts.append(f"{'#' * level} {_markdown(text)}")

    def paragraph(self, text: str) -> None:
        self._parts.append(_markdown(text))

    def code(self, text: str) -> None:
        fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
        self._parts.append(f"{fence}\n{visible(text, lines=True)}\n{fence}")

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> None:
        ends = ["---"] + ["---" if words else "---:"] * (len(headings) - 1)
        lines = [[_markdown(cell) for cell in line] for line in (headings, *rows)]
        lines.insert(1, ends)
        self._parts.append("\n".join(f"| {' | '.join(line)} |" for line in lines))

    def image(self, file: Path, alt: str) -> None:
        self._parts.append(f"![{_markdown(alt)}]({file.parent.name}/{file.name})")

    def text(self) -> str:
        return "\n\n".join(self._parts) + "\n"


@attrs.define
class HtmlPage(Page):
    """A page in HTML that holds its images and loads nothing.

    Attributes:
        title: of the window.
    """

    title: str
    _parts: list[str] = attrs.field(factory=list, init=False)

    def heading(self, text: str, level: int) -> None:
        self._parts.append(f"<h{level}>{_html(text)}</h{level}>")

    def paragraph(self, text: str) -> None:
        self._parts.append(f"<p>{_html(text)}</p>")

    def code(self, text: str) -> None:
        self._parts.append(f"<pre>{html.escape(visible(text, lines=True))}</pre>")

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[str]], *, words: bool = False) -> None:
        kind = ' class="words"' if words else ""
        head = "".join(f"<th>{_html(cell)}</th>" for cell in headings)
        body = "\n".join(
            f"<tr><td>{_html(first)}</td>{''.join(f'<td{kind}>{_html(cell)}</td>' for cell in rest)}</tr>"
            for first, *rest in rows
        )
        self._parts.append(f'<div class="wide"><table>\n<tr>{head}</tr>\n{body}\n</table></div>')

    def image(self, file: Path, alt: str) -> None:
        data = base64.b64encode(file.read_bytes()).decode()
        self._parts.append(f'<p><img src="data:image/png;base64,{data}" alt="{_html(alt)}"></p>')

    def text(self) -> str:
        rules = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
        return "\n".join(
            (
                '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">',
                '<meta name="viewport" content="width=device-width">',
                f'<meta http-equiv="Content-Security-Policy" content="{rules}">',
                f"<title>{_html(self.title)}</title>\n<style>{_STYLE}</style>",
                *self._parts,
                "</html>\n",
            )
        )


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>#|~&$])", r"\\\1", visible(text))


def _html(text: str) -> str:
    return html.escape(visible(text))
