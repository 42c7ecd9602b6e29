"""Writes the tables of `tables.py` into the pages that ask for them: `make pages`.

A page asks by a pair of comments, `<!-- table: NAME -->` and `<!-- end -->`; the command replaces the text
between the two. `tests/test_site.py` fails if a committed page differs.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import tables

DOCS = Path(__file__).resolve().parents[1]
PAGES = (DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md")))
BLOCK = re.compile(r"(<!-- table: (\w+) -->).*?(<!-- end -->)", re.DOTALL)


def filled(text: str) -> str:
    """Returns the text of a page with all its tables written anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n\n{tables.TABLES[found[2]]().strip()}\n\n{found[3]}", text)


def written_by_hand(text: str) -> str:
    """Returns the text of a page without its tables."""
    return BLOCK.sub("", text)


def stale() -> Iterator[tuple[Path, str]]:
    """Yields the pages that differ from their tables, with the text that they should have."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        wanted = filled(text)
        if wanted != text:
            yield page, wanted


if __name__ == "__main__":
    for page, text in stale():
        page.write_text(text, encoding="utf-8")
        sys.stdout.write(f"Wrote {page.relative_to(DOCS.parent)}.\n")
