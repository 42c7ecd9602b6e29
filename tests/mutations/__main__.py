"""Print every mutation with the error that betrayed it; exit with 1 when one survives."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from draftwood.apps.progress import watched
from tests.mutations import MUTATIONS
from tests.mutations.case import BETRAYED, CLEAN, Mutation


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
            f"{worst.found:.6f}",
            f"{worst.wanted:.6f}",
            f"{worst.error:.1e}",
            f"{clean:.0e}",
            "caught" if caught else "survives",
            style=None if caught else "red",
        )
    console.print(table)
    console.print(f"{len(mutations) - survivors} of {len(mutations)} mistakes were caught.")
    return survivors


if __name__ == "__main__":
    console = Console()
    # A log has no width of its own.
    sys.exit(report(MUTATIONS, console if console.is_terminal else Console(width=150)) > 0)
