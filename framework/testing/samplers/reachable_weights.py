"""Draws among weights of which some are too small for any random number to choose them."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwood.laws.randomness import Randomness

_REACH = 2.0**-53 / (53 * 0.6931471805599453)
"""The smallest waiting time of 53 bits over the largest: smaller shares of the largest weight win no race."""


def drawn_one(rng: Randomness, weights: Tensor) -> int:
    """Returns a place by float64 weights `[n]`, as a draw of 53 bits may find it.

    Samplers add numbers such as 1e-300 to keep logarithms finite; a place with such a weight is never drawn.
    """
    unreached = (weights >= 0) & (weights < _REACH * weights.max())
    return rng.choose(torch.where(unreached, 0.0, weights))


def drawn_several(rng: Randomness, weights: Tensor, count: int) -> list[int]:
    """Returns up to `count` different places, each drawn by the weights that are left; fewer if none is."""
    left, places = weights.clone(), list[int]()
    while len(places) < count and bool(left.any()):
        places.append(drawn_one(rng, left))
        left[places[-1]] = 0
    return places
