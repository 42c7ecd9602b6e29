"""A progress bar where someone watches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


def watched(steps: Iterable[T], what: str, *, total: int, console: Console) -> list[T]:
    """All of `steps`, with a bar that goes away at the end; in a pipe or a log there is none."""
    from rich.progress import track

    return list(
        track(steps, what, total=total, console=console, transient=True, disable=not console.is_terminal)
    )
