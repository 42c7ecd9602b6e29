"""The result of a part of the soak: its runs and findings."""

from __future__ import annotations

from collections import Counter
from time import perf_counter

import attrs

SHOWN = 5


@attrs.define
class SoakResult:
    """One line of the table.

    Attributes:
        part: what was tried.
        done: how often.
        failures: what went wrong, one text each; empty where all was survived.
        figures: measured on the way, by what they are.
        attempts: how often each kind was tried.
        seconds: time of the part.
    """

    part: str
    done: int = 0
    failures: list[str] = attrs.field(factory=list)
    figures: dict[str, str] = attrs.field(factory=dict)
    attempts: Counter[str] = attrs.field(factory=Counter)
    seconds: float = 0.0
    _began: float = attrs.field(factory=perf_counter, init=False, repr=False)

    def tell_time(self) -> None:
        """Note the time that the part has taken so far."""
        self.seconds = perf_counter() - self._began

    def tried(self, kind: str, wrong: str | None) -> None:
        """Count one attempt; `wrong` is None where it was survived."""
        self.done += 1
        self.attempts[kind] += 1
        self.tell_time()
        if wrong is not None:
            self.failures.append(f"{kind}: {wrong}")

    @property
    def survived(self) -> int:
        return self.done - len(self.failures)

    def __str__(self) -> str:
        """The failures, for an assertion."""
        more = len(self.failures) - SHOWN
        shown = "\n".join(self.failures[:SHOWN]) + (f"\nand {more} more" if more > 0 else "")
        return f"{self.part}: {self.survived} of {self.done} survived\n{shown}"
