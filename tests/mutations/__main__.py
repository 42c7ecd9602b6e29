"""Print what betrays every mistake, and the check that catches it; exit with 1 when one survives."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from draftwood.apps.terminal.progress import watched
from tests.mutations import MUTATIONS
from tests.mutations.case import BETRAYED, CLEAN, Mutation
from tests.mutations.every import EVERY
from tests.mutations.mistake import Mistake


def report(mutations: Sequence[Mutation], console: Console) -> int:
    """Print the table; returns how many survive."""
    table = Table(
        title=f"What betrayed every mistake (error >= {BETRAYED:.0e}; <= {CLEAN:.0e} without it)",
        title_justify="left",
    )
    for heading in ("mistake", "seen", "worst text"):
        table.add_column(heading, overflow="fold")
    for heading in ("found", "should be", "error", "without it"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    survivors = 0
    steps = ((one, one.betrayal(), one.clean) for one in mutations)
    for one, worst, clean in watched(steps, "Mutations", total=len(mutations), console=console):
        caught = worst.error >= BETRAYED and clean <= CLEAN
        survivors += not caught
        table.add_row(
            one.name,
            one.story,
            " ".join(map(str, worst.text)),
            f"{worst.actual:.6f}",
            f"{worst.expected:.6f}",
            f"{worst.error:.1e}",
            f"{clean:.0e}",
            "caught" if caught else "survives",
            style=None if caught else "red",
        )
    console.print(table)
    console.print(f"{len(mutations) - survivors} of {len(mutations)} mistakes were caught.")
    return survivors


def report_checks(mistakes: Sequence[Mistake], console: Console, page: Path | None = None) -> int:
    """Print which check catches each mistake as it runs by default; returns how many slip past all.

    With `page`, the table is written there in Markdown too.
    """
    table = Table(title="The check that catches every mistake", title_justify="left")
    for heading in ("part", "mistake", "seen", "check", "error"):
        table.add_column(heading, overflow="fold")
    rows, survivors = [], 0
    steps = ((one, one.caught()) for one in mistakes)
    for one, caught in watched(steps, "Mistakes", total=len(mistakes), console=console):
        survivors += caught is None
        check = "slips past" if caught is None else caught.check
        error = "" if caught is None or caught.error is None else f"{caught.error:.1e}"
        rows.append((one.part, one.name, one.story, check, error))
        table.add_row(*rows[-1], style="red" if caught is None else None)
    console.print(table)
    console.print(f"{len(mistakes) - survivors} of {len(mistakes)} mistakes were caught by a check.")
    if page is not None:
        page.write_text(_as_markdown(rows))
    return survivors


def _as_markdown(rows: Sequence[tuple[str, ...]]) -> str:
    lines = [
        "# What the checks catch",
        "",
        f"{len(rows)} mistakes, each made in a correct part, and the first check that sees it by default. "
        "The error is that of a probability, or of a logit where the part is a backend or a drafter; "
        "where it is empty, what is wrong is no number. `python -m tests.mutations --to docs/mistakes.md` "
        "writes this page. [Proofs](proofs.md) says how the checks work.",
        "",
        "| part | mistake | check | error |",
        "|---|---|---|---|",
    ]
    lines += [f"| {part} | {name} | `{check}` | {error} |" for part, name, _, check, error in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--to", type=Path, help="a page to write the table of checks to")
    options = parser.parse_args()
    console = Console()
    # A log has no width of its own.
    console = console if console.is_terminal else Console(width=150)
    torch.set_num_threads(1)
    survivors = report(MUTATIONS, console) + report_checks(EVERY, console, options.to)
    sys.exit(survivors > 0)
