"""The report on a trained head, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def report(content: Mapping[str, Any]) -> None:
    """Print the agreement by depth, a line for every temperature and prompt length, and the contest."""
    from rich import box
    from rich.table import Table

    from draftwood.apps.terminal.plain_console import PlainConsole

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False, pad_edge=False)
    depths = len(content["agreement"][0]["by_depth"])
    by_token = [f"token {depth + 1}" for depth in range(depths)]
    for heading in ("temperature", "prompt", *by_token, "prompt lookup"):
        table.add_column(heading, justify="right")
    for one in content["agreement"]:
        lookup = one.get("lookup")  # which earlier runs did not have
        table.add_row(
            f"{one['temperature']:g}",
            str(one["prompt"]),
            *(f"{share:.3f}" for share in one["by_depth"]),
            "" if lookup is None else f"{lookup:.3f}",
        )
    console = PlainConsole()
    console.print(
        "Share of drafted tokens accepted if all before them were, by place in the draft, and the share that "
        "prompt lookup guesses; parts of texts that run in a loop are left out:"
    )
    console.print(table)
    if "contest" in content:  # which earlier runs did not have
        console.print(contest_line(content["contest"]))


def contest_line(found: Mapping[str, Any] | None) -> str:
    """Returns the result of the contest in a sentence."""
    if found is None:
        return "Speed was not measured: every held-out text runs into a loop at once."
    return (
        f"On {found['prompts']} held-out prompts at temperature 0, a tree ({found['tree']}) gives "
        f"{found['tokens_per_round']:.2f} tokens per round and {found['speed_up']:.2f} times the tokens per "
        f"second of generate(), over {found['tokens']} tokens."
    )
