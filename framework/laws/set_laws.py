"""Children drawn as a set, in one go, and listed in random order."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import final

import attrs
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from draftwood.base.validators import at_least
from draftwood.laws.proposals import DrawnChildren, Proposal, check_distribution
from draftwood.laws.randomness import Randomness

Floats = NDArray[np.float64]

LATEST = 36.0
"""A token whose clock has run this long in its own time has rung, but for a chance of 2e-16."""

LEAST = 1e-30
"""Odds of a token that can be drawn at all are no less, so that products of them stay numbers."""


@final
@attrs.frozen(eq=False)
class FixedTimeSet(Proposal):
    """`count` tokens as a set: those whose clocks have rung at a fixed time, given that so many have.

    The clock of token z rings at an exponential time of rate p(z). The time t is the one at which `count`
    are expected, the sum of 1 - e^(-p t), so the set A has a probability proportional to the product of the
    odds e^(p t) - 1 over A. Siblings stand in random order, so the order tells nothing. Where `count` tokens
    are all that p can give, they are the set.

    Verifiers that take siblings one by one do not serve it: one conditional costs `count` passes over the
    vocabulary.

    Attributes:
        p: `[vocab]`.
        count: of children.

    Source: conditional Poisson sampling (Hajek 1964), with the rates of draws without replacement.
    """

    one_by_one = False
    p: Float[Tensor, " vocab"]
    count: int = attrs.field(validator=at_least(1))

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return int(self.p.shape[-1])

    @classmethod
    def draw(cls, probs: Float[Tensor, " vocab"], *, count: int, rng: Randomness) -> DrawnChildren:
        live = int((probs > 0).sum())
        if not live:
            return DrawnChildren([], [], cls(probs, count))
        law, tokens = cls(probs, min(count, live)), list[int]()
        for k in range(law.count):
            tokens.append(rng.choose(law._conditional(k, tokens)))
        return DrawnChildren(tokens, probs[tokens].tolist(), law)

    @cached_property
    def odds(self) -> Floats:
        """Returns the odds of every token, on the host, up to a common factor, `[vocab]`.

        Raises:
            InvalidDistribution: `p` is none.
        """
        check_distribution(self.p, "The draft distribution of FixedTimeSet")
        p = self.p.double().cpu().numpy()
        if self.count >= (p > 0).sum():
            return (p > 0).astype(np.float64)
        odds = np.expm1(np.minimum(p * time_of(p, self.count), LATEST))
        return np.where(p > 0, np.maximum(odds, LEAST), 0.0)

    def conditional(self, k: int, earlier: Sequence[int]) -> Float[Tensor, " vocab"]:
        return self._conditional(k, earlier).to(self.p)

    def _conditional(self, k: int, earlier: Sequence[int]) -> Tensor:
        odds = self.odds.copy()
        odds[list(earlier)] = 0
        weights = odds * sums_beside(odds, self.count - k - 1)
        total = weights.sum()
        return torch.from_numpy(weights / total if total > 0 else weights)


def time_of(p: Floats, count: int) -> float:
    """The time at which `count` of the clocks with the rates `p` are expected to have rung.

    The number rises and bends down, so Newton's steps from the left stay there.
    """
    time = float(count)
    with np.errstate(all="ignore"):  # where the others are next to nothing, the next step is infinite
        for _ in range(100):
            waiting = np.exp(-p * time)
            later = time + (count - (1 - waiting).sum()) / (p * waiting).sum()
            if not time * (1 + 1e-13) < later < np.inf:
                break
            time = float(later)
    return time


def sums_beside(odds: Floats, count: int) -> Floats:
    """Returns each token's sum of products of `count` of the other odds, up to a common factor, `[n]`."""
    behind, scales = [np.ones(len(odds) + 1)], [0.0]  # over the tokens after each token
    for _ in range(count):
        products = np.append((odds * behind[-1][1:])[::-1].cumsum()[::-1], 0.0)
        scale = products[0] or 1.0
        behind.append(products / scale)
        scales.append(scales[-1] + float(np.log(scale)))
    total, before, scale_before = np.zeros(len(odds)), np.ones(len(odds)), 0.0
    for taken in range(count + 1):
        factor = np.exp(scale_before + scales[count - taken] - scales[count])
        total += factor * before * behind[count - taken][1:]
        before = np.append(0.0, (odds * before)[:-1].cumsum())
        scale = before[-1] or 1.0
        before, scale_before = before / scale, scale_before + float(np.log(scale))
    return total
