"""The law of the children of a node as a set: its odds over a vocabulary, and its sums over light tokens."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import attrs
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.laws.set_laws import LATEST
from draftwood.strategies.verifiers.orders import race_sums
from draftwood.strategies.verifiers.orders.race_sums import Floats, Ints, Weights

POWERS = 6
"""Powers of light odds that count: the next ones vanish compared with the first."""


@attrs.frozen(eq=False)
class Columns:
    """The law of a set over n tokens, in some order.

    A set A has a probability proportional to the product of its odds, times the sum of `outside` over the
    tokens that are not in A and of `inside` over the tokens of A, plus `constant`.

    Attributes:
        odds: `[n]`.
        outside, inside: `[n]`.
        constant: the part that belongs to no token.
    """

    odds: Floats
    outside: Floats
    inside: Floats
    constant: float = 0.0

    def at(self, places: Ints) -> Columns:
        """Returns the columns of these places, in their order."""
        return Columns(self.odds[places], self.outside[places], self.inside[places], self.constant)


@attrs.frozen(eq=False)
class LightSums:
    """Sums over tokens whose odds are small, as `POWERS` of them.

    Attributes:
        powers: the sums of the first powers of their odds.
        slopes: the same times the token's `inside` less its `outside`.
        outside: their sum.
    """

    powers: Floats
    slopes: Floats
    outside: float

    def of_sets(self, count: int, constant: float, factor: float) -> tuple[Floats, Floats]:
        """Over their sets of 0 to `count` tokens: the sums of products of odds, and the same with the marks.

        All odds are multiplied by `factor`.
        """
        products, marked = race_sums.of_light_sets(self.powers, self.slopes, factor, count)
        return products, marked + (constant + self.outside) * products


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
        """Returns the columns of tokens of these weights, times `factor`."""

    @abstractmethod
    def light(self, weights: Weights) -> LightSums:
        """Over the tokens of these weights, times `factor`; 0 for none."""

    def at(self, tokens: Ints) -> Columns:
        """Returns the columns of these tokens."""
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
        return Columns(weights, np.zeros_like(weights), 1 / np.maximum(left, 1e-300))

    def light(self, weights: Weights) -> LightSums:
        powers, slopes = race_sums.pair_sums(weights)
        return LightSums(powers, slopes, 0.0)


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
        # What surely came is no mark: compared with the tokens left, its own rate would be immense.
        outside = np.where(weights < LATEST, weights, 0.0)
        return Columns(np.expm1(np.minimum(weights, LATEST)), outside, np.zeros_like(weights))

    def light(self, weights: Weights) -> LightSums:
        moments = race_sums.powers_of(weights)
        # The mark of a token is its weight, and it is none of those inside.
        slopes = -_EXPONENTIALS[:, :-1] @ moments[1:]
        return LightSums(_EXPONENTIALS @ moments, slopes, float(moments[0]))


@attrs.frozen(eq=False)
class Given(SetLaw):
    """A set with these odds and no mark."""

    weights: Float[Tensor, " vocab"]
    count: int
    factor: float = attrs.field(default=1.0, init=False)

    def columns(self, weights: Floats) -> Columns:
        nothing = np.zeros_like(weights)
        return Columns(weights, nothing, nothing, constant=1.0)

    def light(self, weights: Weights) -> LightSums:
        return LightSums(race_sums.powers_of(weights), np.zeros(POWERS), 0.0)


def _exponentials() -> Floats:
    """Returns the coefficients of x to x^POWERS in (e^x - 1)^j for j from 1 to POWERS, `[POWERS, POWERS]`."""
    one = np.array([0, *(1 / math.factorial(m) for m in range(1, POWERS + 1))])
    powers = [one]
    for _ in range(POWERS - 1):
        powers.append(np.convolve(powers[-1], one)[: POWERS + 1])
    return np.stack(powers)[:, 1:]


_EXPONENTIALS = _exponentials()
