"""Orders random numbers that are not drawn yet: the places of the largest, or of the smallest."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from draftwood.testing.samplers.lazy_numbers import LazyNumber

Numbers = NDArray[Any]
"""An array of `LazyNumber` and numbers."""


def places_won(numbers: Numbers, axis: int | None, *, largest: bool) -> Any:
    """Returns the places of the largest or smallest along an axis, or of all."""
    if axis is None:
        return _order(list(numbers.reshape(-1)), 1, largest)[0]
    return np.take(places_in_order(numbers, axis, 1, largest=largest), 0, axis)


def places_in_order(numbers: Numbers, axis: int, count: int, *, largest: bool) -> NDArray[Any]:
    """Returns the places of the `count` first along an axis, which has that length then."""
    moved = np.moveaxis(numbers, axis, -1)
    won = [_order(list(row), count, largest) for row in moved.reshape(-1, moved.shape[-1])]
    return np.moveaxis(np.array(won, np.int64).reshape(*moved.shape[:-1], count), -1, axis)


def _order(numbers: list[Any], count: int, largest: bool) -> list[int]:
    lazy = [one for one in numbers if isinstance(one, LazyNumber)]
    if not lazy:
        ranked = np.argsort(np.array(numbers, float) * (-1 if largest else 1), kind="stable")
        return [int(place) for place in ranked[:count]]
    return lazy[0].chance.order(numbers, count, largest=largest)
