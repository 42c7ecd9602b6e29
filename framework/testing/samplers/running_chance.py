"""The chance of the run that is being made, for functions that are made once and draw in run after run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from draftwood.laws.randomness import Randomness
from draftwood.testing.samplers.lazy_numbers import LazyChance
from draftwood.testing.samplers.used_generators import UsedGenerators


class RunningChance:
    """The chance and the used generators of the run that is being made; the latest of several."""

    def __init__(self) -> None:
        self._runs: list[tuple[LazyChance, UsedGenerators]] = []

    @contextlib.contextmanager
    def of_run(self, rng: Randomness, used: UsedGenerators) -> Iterator[LazyChance]:
        """Within it `rng` answers the draws of a new run."""
        self._runs.append((LazyChance(rng), used))
        try:
            yield self.now
        finally:
            self._runs.pop()

    @property
    def enumerated(self) -> bool:
        """Returns whether a run is being made; a generator that it made may be used after it."""
        return bool(self._runs)

    @property
    def now(self) -> LazyChance:
        """Returns the chance of the run."""
        return self._runs[-1][0]

    @property
    def used(self) -> UsedGenerators:
        """Returns the states in which generators were used so far."""
        return self._runs[-1][1]
