"""Figures with their intervals, bootstrapped over prompts or runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import attrs
import numpy as np
from numpy.typing import NDArray

from draftwood.decoding.metrics import Sums

_BOOTSTRAPS = 4000


@attrs.frozen
class Figure:
    """A metric's value with its 95 % interval, None if a single prompt cannot give one."""

    value: float
    low: float | None = None
    high: float | None = None


def interval(sums: Sums, of: Callable[[Sums], NDArray[np.float64]]) -> Figure | None:
    """A figure with its 95 % interval by the bootstrap over prompts; None where it cannot be known.

    Args:
        sums: quantities of every prompt, `[prompts]` each.
        of: the figure from their sums over prompts, elementwise.
    """
    count = max(map(len, sums.values()))
    usable = {name: values for name, values in sums.items() if len(values) == count}
    totals = {name: values.sum(keepdims=True) for name, values in usable.items()}
    with np.errstate(invalid="ignore", divide="ignore"):
        try:
            value = float(of(totals)[0])
        except KeyError:
            return None
        if not np.isfinite(value):
            return None
        if count < 2:
            return Figure(value)
        drawn = of(_Resampled(usable, np.random.default_rng(0).integers(count, size=(_BOOTSTRAPS, count))))
    low, high = np.quantile(drawn[np.isfinite(drawn)], [0.025, 0.975])
    return Figure(value, float(low), float(high))


@attrs.frozen(eq=False)
class _Resampled(Mapping[str, NDArray[np.float64]]):
    """Sums of quantities over prompts chosen at random, worked out for those that are asked for."""

    quantities: Sums
    chosen: NDArray[np.int64]
    _known: dict[str, NDArray[np.float64]] = attrs.field(factory=dict, init=False)

    def __getitem__(self, name: str) -> NDArray[np.float64]:
        if name not in self._known:
            self._known[name] = self.quantities[name][self.chosen].sum(1)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.quantities)

    def __len__(self) -> int:
        return len(self.quantities)
