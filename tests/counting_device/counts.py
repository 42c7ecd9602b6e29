"""Counts of a device's work: how often, in which phase, and by which line of the project."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import attrs


class Kind(StrEnum):
    """A kind of event that is counted."""

    LAUNCH = "launch"
    """A kernel. Views and allocations launch none."""
    WAIT = "wait"
    """The host stands still until the device has done all that it was given, and a result is there."""
    BLOCKING_COPY = "blocking copy"
    """From the host to the device, and the host waits for its end."""
    COPY = "copy"
    """From the host to the device, and the host goes on."""
    COPY_BACK = "copy back"
    """From the device to the host, and the host goes on."""


class Event(NamedTuple):
    """One thing that a device was asked to do.

    Attributes:
        kind: what it is.
        operation: `item`, `add`, or a Triton kernel, `tree_attention:attend`.
        phase: names of the phases around it, the outermost first.
        line: `strategies/policies/chain.py:40`, the nearest line of the project.
        in_pass: whether a torch module was running: a model's pass, not what is around it.
    """

    kind: Kind
    operation: str
    phase: tuple[str, ...]
    line: str
    in_pass: bool

    def __str__(self) -> str:
        return f"{self.kind} ({self.operation}) at {self.line}"


@attrs.define(eq=False)
class Counts:
    """The number of times that every event happened."""

    events: Counter[Event] = attrs.field(factory=Counter)

    def of(self, *kinds: Kind, phase: str | None = None, in_pass: bool | None = None) -> int:
        """Returns the number of events of these kinds.

        Args:
            kinds: none are all.
            phase: the name of a phase around them; None: anywhere.
            in_pass: in passes of models, or outside them; None: both.
        """
        return sum(
            count
            for event, count in self.events.items()
            if (not kinds or event.kind in kinds)
            and (phase is None or phase in event.phase)
            and (in_pass is None or event.in_pass == in_pass)
        )

    def by_phase(self) -> dict[tuple[str, ...], Counts]:
        """Returns the events of every phase that has some, without the events of phases inside it."""
        phases: dict[tuple[str, ...], Counts] = {}
        for event, count in self.events.items():
            phases.setdefault(event.phase, Counts()).events[event] += count
        return phases

    def lines(self, *kinds: Kind) -> list[tuple[str, int]]:
        """Returns events with their lines and counts, the most frequent first."""
        lines: Counter[str] = Counter()
        for event, count in self.events.items():
            if not kinds or event.kind in kinds:
                lines[str(event)] += count
        return lines.most_common()

    def drop(self, phase: str) -> None:
        """Forget what happened in a phase."""
        self.events = Counter({event: n for event, n in self.events.items() if phase not in event.phase})

    @classmethod
    def sum(cls, several: Iterable[Counts]) -> Counts:
        """All events of `several`."""
        total = cls()
        for counts in several:
            total.events.update(counts.events)
        return total
