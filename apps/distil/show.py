"""The output of a run: its progress and its result."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from time import monotonic
from typing import Any, TypeVar

from draftwood.apps.terminal.shown import to_stderr

T = TypeVar("T")

_SECONDS = 30.0  # between two lines where there is no terminal


def shown(
    steps: Iterable[T],
    what: str,
    *,
    total: int,
    at: Callable[[T], int] | None = None,
    say: Callable[[T], str] = lambda _: "",
) -> Iterator[T]:
    """All of `steps`, with a bar on a terminal and a line to stderr now and then in a log.

    Args:
        steps: that are left.
        what: they do.
        total: steps in all.
        at: the number of a step, where those before it may have been done earlier.
        say: what is worth telling of a step.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from draftwood.apps.terminal.plain_console import PlainConsole

    console = PlainConsole(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[told]}"),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(what, total=total, told="")
        last = monotonic()
        for number, step in enumerate(steps, start=1):
            number = at(step) if at else number
            told = say(step)
            bar.update(task, completed=number, told=told)
            if not console.is_terminal and (monotonic() - last > _SECONDS or number == total):
                last = monotonic()
                to_stderr(f"{what}: {number} of {total}{', ' if told else ''}{told}")
            yield step


def report(content: Mapping[str, Any]) -> None:
    """Before and after, by temperature and prompt length; and how draft probabilities hold afterwards."""
    from rich import box
    from rich.table import Table

    from draftwood.apps.terminal.plain_console import PlainConsole

    style: dict[str, Any] = {"box": box.SIMPLE_HEAD, "padding": (0, 1, 0, 0), "show_edge": False}
    console = PlainConsole()
    table = Table(pad_edge=False, **style)
    for heading in ("temperature", "prompt", "overlap", "tokens a round"):
        table.add_column(heading, justify="right")
    edges = [one["edge"] for one in content["after"][0]["calibration"]]
    accepted = Table(pad_edge=False, **style)
    accepted.add_column("accepted, by draft probability up to", justify="right")
    for edge in edges:
        accepted.add_column(f"{edge:g}", justify="right")
    for before, after in zip(content["before"], content["after"], strict=True):
        named = (f"{after['temperature']:g}", str(after["prompt"]))
        figures = (
            f"{before['overlap']:.3f} -> {after['overlap']:.3f}",
            f"{before['chain']:.2f} -> {after['chain']:.2f}",
        )
        table.add_row(*named, *figures)
        shares = [
            "-" if one["accepted"] is None else f"{one['accepted']:.2f}" for one in after["calibration"]
        ]
        accepted.add_row(f"temperature {named[0]}, prompt {named[1]}", *shares)
    console.print(table)
    console.print(accepted)
