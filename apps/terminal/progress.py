"""Progress of long work: a bar in a terminal, a line now and then in a log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from draftwood.apps.terminal.shown import to_stderr

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")

_SECONDS = 30.0  # between two lines of a log


def watched(steps: Iterable[T], what: str, *, total: int, console: Console) -> list[T]:
    """Returns all of `steps` while their progress is shown."""
    return list(progress(steps, what, total=total, console=console))


def progress(
    steps: Iterable[T],
    what: str,
    *,
    total: int,
    at: Callable[[T], int] | None = None,
    say: Callable[[T], str] = lambda _: "",
    console: Console | None = None,
) -> Iterator[T]:
    """Yields `steps` while a bar on a terminal, or lines in a log, show the progress and the time left.

    Args:
        steps: the steps that are left.
        what: a verb for them, such as "training".
        total: the number of all steps, including those that were done before.
        at: the number of a step, if earlier ones may have been done before.
        say: something about a step that is worth a line.
        console: where the bar is drawn; None: stderr.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from draftwood.apps.terminal.plain_console import PlainConsole

    console = console or PlainConsole(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[told]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task: Any = bar.add_task(what, total=total, told="")
        started = last = monotonic()
        before: int | None = None  # steps that an earlier run had done
        spoke = False
        for number, step in enumerate(steps, start=1):
            number = at(step) if at else number
            before = number - 1 if before is None else before
            told, now = say(step), monotonic()
            bar.update(task, completed=number, told=told)
            ends = number == total and (spoke or told != "")
            if not console.is_terminal and (now - last > _SECONDS or ends):
                spoke, last = True, now
                left = (now - started) / (number - before) * (total - number)
                remaining = "" if number == total else f"about {duration(left)} left"
                to_stderr(
                    ": ".join((what, ", ".join(filter(None, (f"{number} of {total}", told, remaining)))))
                )
            yield step


def duration(seconds: float) -> str:
    """Returns a length of time in words, such as "40 s", "3 min" or "2 h 10 min"."""
    if seconds < 99.5:
        return f"{max(seconds, 1):.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes // 60} h {minutes % 60} min"
