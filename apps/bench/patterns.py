"""Patterns of arrivals: when requests come, whether the decoder keeps up with them or not."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np

from draftwood.base.errors import InvalidInput


@attrs.frozen
class Pattern:
    """A pattern of arrivals, in an open loop: nobody waits for an answer before the next request comes.

    Attributes:
        word: as it was given.
        rate: requests a second; 0: the load sets it.
        together: requests that come at once; 1 for a Poisson process.
    """

    word: str
    rate: float = 0.0
    together: int = 1

    @classmethod
    def parse(cls, word: str) -> Pattern:
        """Returns the pattern `poisson`, `poisson:RATE`, `burst:N` or `burst:N:EVERY`.

        Raises:
            InvalidInput: it is none of these.
        """
        kind, *numbers = word.split(":")
        try:
            if kind == "poisson" and len(numbers) <= 1:
                return cls(word, _above(0, float(numbers[0])) if numbers else 0.0)
            if kind == "burst" and 1 <= len(numbers) <= 2:
                together = int(_above(0, int(numbers[0])))
                every = _above(0, float(numbers[1])) if numbers[1:] else None
                return cls(word, together / every if every else 0.0, together)
        except ValueError:
            pass
        raise InvalidInput(
            f"The arrivals {word!r:.80} are none; give poisson, poisson:RATE (requests a second), burst:N or "
            "burst:N:EVERY (N requests at once, seconds between bursts)."
        )

    @property
    def is_burst(self) -> bool:
        return self.word.startswith("burst")

    def times(self, count: int, *, rate: float, seed: int) -> list[float]:
        """Returns the seconds after the start at which `count` requests come, ascending.

        Requests of one seed come with the same gaps, scaled, at every rate, so that contenders and loads
        differ in nothing else.
        """
        if self.is_burst:
            return [number // self.together * self.together / rate for number in range(count)]
        gaps: Any = np.random.default_rng(seed).exponential(1 / rate, count)
        return [float(time) for time in np.cumsum(gaps) - gaps[0]]


def _above(bound: float, number: float) -> float:
    if not bound < number < float("inf"):
        raise ValueError
    return number
