"""The output of a run: its progress and its result."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any

from draftwood.apps.terminal.progress import progress
from draftwood.zoo.distil.steps import Trained


def learning(steps: Iterable[Trained], *, total: int) -> Trained:
    """Returns the last of `steps` of a training, while loss, tokens a second and time left are shown."""
    began: tuple[float, int] | None = None

    def said(now: Trained) -> str:
        nonlocal began
        began = began or (monotonic(), now.tokens)
        seconds, seen = monotonic() - began[0], now.tokens - began[1]
        return f"loss {now.loss:.3f}" + (f", {seen / seconds:,.0f} tokens/s" if seen else "")

    return deque(progress(steps, "training", total=total, at=lambda now: now.step, say=said), maxlen=1).pop()


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
