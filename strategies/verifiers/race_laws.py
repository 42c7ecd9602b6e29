"""The law of the children of a node as a set: its odds over a vocabulary, and its sums over light tokens."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from operator import mul

import attrs
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from draftwood.set_laws import LATEST

Floats = NDArray[np.float64]

POWERS = 6
"""Powers of light odds that count: of the next ones nothing is left beside the first."""


@attrs.frozen(eq=False)
class Columns:
    """The law of a set over n tokens, in some order.

    A set A has a probability proportional to the product of its odds, times the sum of `outside` over the
    tokens that are not in A and of `inside` over those that are, with `beside` added to it.

    Attributes:
        odds: `[n]`.
        outside, inside: `[n]`; None where there are none.
        beside: of no token.
    """

    odds: Floats
    outside: Floats | None = None
    inside: Floats | None = None
    beside: float = 0.0

    def at(self, places: NDArray[np.int64] | slice) -> Columns:
        """The same of these places, in their order."""
        outside, inside = (None if of is None else of[places] for of in (self.outside, self.inside))
        return Columns(self.odds[places], outside, inside, self.beside)


@attrs.frozen(eq=False)
class LightSums:
    """Sums over tokens whose odds are small, as `POWERS` of them.

    Attributes:
        powers: the sums of the first powers of their odds.
        slopes: the same times the token's `inside` less its `outside`.
        outside: their sum.
    """

    powers: tuple[float, ...]
    slopes: tuple[float, ...]
    outside: float

    def of_sets(self, count: int, beside: float) -> tuple[Floats, Floats]:
        """Over their sets of 0 to `count` tokens: the sums of products of odds, and the same with the marks.

        By Newton's identities; the marks go along as derivatives.
        """
        product, marked = [1.0], [0.0]
        for m in range(1, count + 1):
            sums, slopes, sign = 0.0, 0.0, 1 / m
            for j, (power, slope) in enumerate(zip(self.powers[:m], self.slopes[:m], strict=True), start=1):
                sums += sign * product[m - j] * power
                slopes += sign * (marked[m - j] * power + j * product[m - j] * slope)
                sign = -sign
            product.append(sums)
            marked.append(slopes)
        products = np.array(product)
        return products, np.array(marked) + (beside + self.outside) * products


class SetLaw(ABC):
    """The law of `count` siblings as a set, over a vocabulary.

    Attributes:
        weights: `[vocab]` on the CPU, from which a token's odds follow.
        count: K.
    """

    weights: Float[Tensor, " vocab"]
    count: int
    factor: float

    @abstractmethod
    def columns(self, weights: Floats) -> Columns:
        """Of the tokens of these weights, times `factor`."""

    @abstractmethod
    def light(self, weights: Float[Tensor, " vocab"]) -> LightSums:
        """Over the tokens of these weights, times `factor`; 0 for none."""

    def at(self, tokens: NDArray[np.int64]) -> Columns:
        """Of these tokens."""
        return self.columns(self.weights.numpy()[tokens].astype(np.float64) * self.factor)


@attrs.frozen(eq=False)
class Pair(SetLaw):
    """Two tokens drawn one after the other without replacement: D(a) D(b) (h(a) + h(b)) with h = 1 / (1 - D).

    Attributes:
        weights: D up to a factor.
        total: their sum.
    """

    weights: Float[Tensor, " vocab"]
    total: float = 1.0
    count: int = attrs.field(default=2, init=False)

    @property
    def factor(self) -> float:  # type: ignore[override]
        return 1 / self.total

    def columns(self, weights: Floats) -> Columns:
        left = 1 - weights
        if len(weights) and weights[top := int(weights.argmax())] > 0.5:
            # What a nearly certain token leaves is lost in a difference.
            others = self.weights.to(torch.float64, copy=True)
            others[int(others.argmax())] = 0
            left[top] = float(others.sum()) * self.factor
        return Columns(weights, None, 1 / np.maximum(left, 1e-300))

    def light(self, weights: Float[Tensor, " vocab"]) -> LightSums:
        tried = weights / (1 - weights)
        powers = float(weights.sum()), _dot(weights, weights)
        return LightSums(powers, (float(tried.sum()), _dot(weights, tried)), 0.0)


@attrs.frozen(eq=False)
class Arrival(SetLaw):
    """Tokens drawn without replacement, given the time at which the next one would have come.

    The odds of a token with weight w are e^w - 1, and its mark w: D and the mark times the time.

    Attributes:
        weights: D up to a factor.
        count: K.
        factor: the time, over the sum of the weights.
    """

    weights: Float[Tensor, " vocab"]
    count: int
    factor: float

    def columns(self, weights: Floats) -> Columns:
        # What surely came is no mark: beside those that are left, its own rate would be immense.
        return Columns(np.expm1(np.minimum(weights, LATEST)), np.where(weights < LATEST, weights, 0.0))

    def light(self, weights: Float[Tensor, " vocab"]) -> LightSums:
        square = weights * weights
        cube = square * weights
        pairs = (weights, weights), (square, weights), (square, square), (cube, square), (cube, cube)
        moments = [float(weights.sum()), *(_dot(*pair) for pair in pairs)]
        powers = [math.fsum(map(mul, of_power, moments)) for of_power in _EXPONENTIALS]
        # The mark of a token is its weight, and it is none of those inside.
        slopes = [-math.fsum(map(mul, of_power, moments[1:])) for of_power in _EXPONENTIALS]
        return LightSums(tuple(powers), tuple(slopes), moments[0])


@attrs.frozen(eq=False)
class Given(SetLaw):
    """A set with these odds and no mark."""

    weights: Float[Tensor, " vocab"]
    count: int
    factor: float = attrs.field(default=1.0, init=False)

    def columns(self, weights: Floats) -> Columns:
        return Columns(weights, beside=1.0)

    def light(self, weights: Float[Tensor, " vocab"]) -> LightSums:
        powers, power = [], torch.ones_like(weights)
        for _ in range(POWERS):
            power = power * weights
            powers.append(float(power.sum()))
        return LightSums(tuple(powers), (0.0,) * POWERS, 0.0)


def _dot(one: Tensor, other: Tensor) -> float:
    """The sum of the products; by numpy, as torch shares even short ones out to its threads."""
    return float(one.numpy() @ other.numpy())


def _exponentials() -> list[list[float]]:
    """Of (e^x - 1)^j the coefficients of x to x^POWERS, for j from 1 to POWERS."""
    one = [1 / math.factorial(m) for m in range(1, POWERS + 1)]
    powers = [one]
    for _ in range(POWERS - 1):
        last = powers[-1]
        powers.append([sum(last[i] * one[m - i - 1] for i in range(m)) for m in range(POWERS)])
    return powers


_EXPONENTIALS = _exponentials()
