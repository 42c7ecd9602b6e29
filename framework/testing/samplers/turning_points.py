"""Finds the point of a uniform's grid at which a comparison with a random number changes its answer."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

_ROUNDING = 8
"""Points by which rounding moves the turning point of a linear function, at most."""


def turning_point(
    value: Callable[[int], Any], low: int, high: int, before: Callable[[Any], bool], near: Any = math.nan
) -> int:
    """Returns the first point from `low` on whose value is not `before` the turn; `high` if there is none.

    Args:
        value: a monotone function of the points.
        low, high: the first point, and the end of the points.
        before: whether a value comes before the turn.
        near: about the value at the turn. If the function is linear, few points are tried then.
    """
    first, end = low, high
    for middle in _around(value, low, high, near):
        if first <= middle < end:
            first, end = (middle + 1, end) if before(value(middle)) else (first, middle)
    while first < end:
        middle = (first + end) // 2
        first, end = (middle + 1, end) if before(value(middle)) else (first, middle)
    return first


def _around(value: Callable[[int], Any], low: int, high: int, sought: Any) -> tuple[int, ...]:
    """Returns points before and after the one with the value that is sought, if the function is linear."""
    if high - low <= 4 * _ROUNDING or np.ndim(sought):
        return ()
    ends = float(value(low)), float(value(high - 1))
    if not (min(ends) < sought < max(ends) and math.isfinite(ends[1] - ends[0])):
        return ()
    guess = low + int((float(sought) - ends[0]) / (ends[1] - ends[0]) * (high - low))
    return guess - _ROUNDING, guess + _ROUNDING
