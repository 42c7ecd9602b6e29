"""`draftwood view`: a trace as one page that needs no network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from draftwood.apps.terminal.shown import say
from draftwood.apps.view import page
from draftwood.apps.view.reading import read
from draftwood.base.errors import InvalidInput
from draftwood.base.whole_files import check_writable, write_text


def view(
    trace_file: Annotated[
        Path,
        typer.Argument(
            metavar="TRACE", help="A trace, as draftwood generate --trace writes it.", show_default=False
        ),
    ],
    to: Annotated[
        Path | None, typer.Option("--to", help="The page; default: the trace's name with .html.")
    ] = None,
) -> None:
    """Make one HTML page of a trace, with every round's tree.

    The text is coloured by how it came. The page holds everything it needs and loads nothing; open it in
    any browser. Its keys: left and right step through the rounds, ? lists the others.

    \b
    Examples:
      draftwood generate --prompt "Dear Sir," --trace letter.json
      draftwood view letter.json
      draftwood view letter.json --to shown/letter.html
    """
    where = to or trace_file.with_suffix(".html")
    check_writable(where)
    if where.exists() and where.samefile(trace_file):
        raise InvalidInput(f"{str(where)!r} is the trace itself; name another file with --to.")
    if to is None and where.exists() and not page.is_ours(where):
        raise InvalidInput(f"{str(where)!r} is not a page that draftwood made; name a file with --to.")
    shown = read(trace_file)
    # The page is UTF-8, also where the locale is not.
    name = os.fsencode(trace_file.name).decode("utf-8", errors="replace")
    write_text(where, page.html(shown, name))
    rounds = sum(len(row["rounds"]) for row in shown["rows"])
    say(f"{where}: {rounds} {'round' if rounds == 1 else 'rounds'}; open it in a browser.")
