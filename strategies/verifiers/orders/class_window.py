"""Two siblings without replacement, the better one first: how they are ranked, and their laws."""

from __future__ import annotations

import math
from functools import cached_property

import attrs
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from draftwood.strategies.verifiers.orders.class_choice import STAKE, Columns, choose_class
from draftwood.strategies.verifiers.residual import Residual, SiblingLaw, TriedLaw
from draftwood.strategies.verifiers.vocabulary import (
    Tokens,
    above,
    checked_total,
    gathered,
    largest,
    put,
    total,
)

Floats = NDArray[np.float64]


@attrs.frozen(eq=False)
class RemainingDraft:
    """The draft's distribution D with the tried tokens at 0.

    Attributes:
        weights: `[vocab]`; not to be written to.
        total: their sum.
        top: the token that holds more than half of that, or None.
        rest: the sum of all others, where there is such a token: their sum is not lost in the total.
        stakes: tokens that may be of the class, in order, on the host `[n]`.
    """

    weights: Float[Tensor, " vocab"]
    total: float
    top: int | None
    rest: float
    stakes: Tokens

    @classmethod
    def of(cls, p: Float[Tensor, " vocab"]) -> RemainingDraft:
        """Returns the remaining draft before any token was tried: D itself.

        Raises:
            InvalidDistribution: `p` is none.
        """
        whole = checked_total(p, "The draft distribution of WithoutReplacement")
        if p.dtype not in (torch.float32, torch.float64):
            p = p.float()
        return cls._of(p, whole, above(p, STAKE))

    @classmethod
    def _of(cls, weights: Float[Tensor, " vocab"], whole: float, stakes: Tokens) -> RemainingDraft:
        top, most = largest(weights)
        if most <= whole / 2:
            return cls(weights, whole, None, whole, stakes)
        rest = total(weights[:top]) + total(weights[top + 1 :])
        return cls(weights, rest + most, top, rest, stakes)

    def without(self, token: int) -> RemainingDraft:
        """Returns what remains when `token` has been tried too."""
        weights = self.weights.clone()
        weights[token] = 0
        return self._of(weights, total(weights), self.stakes[self.stakes != token])

    @property
    def least_beside(self) -> float:
        """Returns about the least that it holds without any one token."""
        return self.total / 2 if self.top is None else self.rest

    def double(self) -> RemainingDraft:
        return attrs.evolve(self, weights=self.weights.double())

    def beside(self) -> Float[Tensor, " vocab"]:
        """Returns its mass without each token, `[vocab]`."""
        beside = self.total - self.weights
        if self.top is not None:
            beside[self.top] = self.rest
        return beside


@attrs.frozen(eq=False)
class ClassWindow:
    """A waiting sibling z, and the next one, drawn by D without the tried tokens and z.

    Each is of the class with a chance f(y) that depends on its token y. The next one goes first if it
    belongs to the class and the waiting one does not.

    Attributes:
        h: the waiting one's law.
        draft: D without the tried tokens.
        odds: h over q, times the total of h; q(z) is the mass of D without the tried tokens and z, `[vocab]`.
        odds_total: the sum of the odds without the draft's `top`, over the total of h.
        members: tokens that may be of the class, in order, on the host `[members]`.
        f: the chances with which they are, float64 on the host, `[members]`.
        columns: h, D and the odds of the members.
    """

    h: SiblingLaw
    draft: RemainingDraft
    odds: Float[Tensor, " vocab"]
    odds_total: float
    members: Tokens
    f: Floats
    columns: Columns

    @classmethod
    def open(cls, h: SiblingLaw, draft: RemainingDraft, *, further: int, residual: Residual) -> ClassWindow:
        """The window with the class that lets most of `residual` through.

        Args:
            h: the waiting one's law.
            draft: D without the tried tokens.
            further: siblings after the two; their number must not depend on these two.
            residual: what is left of the target.
        """
        if draft.weights.dtype != torch.float64 and draft.least_beside < 1e-30:
            # The odds of a token that is nearly certain leave the range of float32.
            h, draft = attrs.evolve(h, weights=h.weights.double()), draft.double()
        beside = draft.beside()
        odds = torch.div(h.weights, beside, out=beside)
        # The only token that is left has no rival, and is nobody's rival.
        if not draft.total > 0:
            odds.zero_()
        elif draft.top is not None and not float(odds[draft.top]) < math.inf:
            odds[draft.top] = 0
        odds_total = _total_beside(odds, draft.top) / h.total
        window = cls(
            h, draft, odds, odds_total, draft.stakes, np.zeros(0), columns_of(h, draft, draft.stakes)
        )
        f = window._choice(residual, further)
        live = np.flatnonzero(f)
        return cls(h, draft, odds, odds_total, draft.stakes[live], f[live], window.columns.at(live))

    def _choice(self, residual: Residual, further: int) -> Floats:
        """The chances of the tokens that may be of the class, which are all `members` so far."""
        if not len(self.members):
            return np.zeros(0)
        target = gathered(residual.weights, self.members) / residual.scale
        sums = (residual.allowance, 1.0, self.draft.total, self.odds_total + self._top_odds)
        whole = Columns(*(np.array([number]) for number in sums))
        return choose_class(attrs.evolve(self.columns, target=target), whole, further=further)

    def chance_of_class(self, token: int) -> float:
        """f(token)."""
        place = int(self.members.searchsorted(token))
        return float(self.f[place]) if place < len(self.f) and self.members[place] == token else 0.0

    @cached_property
    def rivals(self) -> tuple[float, float]:
        """Mass that beats a waiting one outside the class, and, over q, mass that one inside beats.

        They are the sums of f D and of (1 - f) h / q.
        """
        better, worse = self.rivals_of_top
        if self.draft.top is None:
            return better, worse
        f = self.chance_of_class(self.draft.top)
        return better + f * float(self.draft.weights[self.draft.top]), worse + (1 - f) * self._top_odds

    @cached_property
    def rivals_of_top(self) -> tuple[float, float]:
        """The rivals of the draft's top, without it: what it takes from itself would cancel too badly."""
        f = self.f if self.draft.top is None else self.f * (self.members != self.draft.top)
        return float(f @ self.columns.draft), max(self.odds_total - float(f @ self.columns.odds), 0.0)

    @cached_property
    def _top_odds(self) -> float:
        return 0.0 if self.draft.top is None else float(self.odds[self.draft.top]) / self.h.total

    def first(self) -> TriedLaw:
        """The law of the one that is tried first."""
        return FirstLaw(self)

    def second(self, token: int) -> SiblingLaw:
        """The law of the other one, given the `token` that went first."""
        belongs = self.chance_of_class(token)
        stayed, came = float(self.odds[token]) / self.h.total, float(self.draft.weights[token]) * belongs
        # Of any size at all; these are near 1 in sum.
        size = stayed * self.draft.total + came * (self.odds_total + self._top_odds)
        if not size > 0:
            return SiblingLaw(torch.zeros_like(self.draft.weights))
        stayed, came = stayed / size, came / size
        weights = self.draft.weights * stayed
        if came > 0:
            weights.add_(self.odds, alpha=came / self.h.total)
        f, columns = self.f, self.columns
        if len(f):
            fixed = stayed * (1 - (1 - belongs) * f) * columns.draft + came * (1 - f) * columns.odds
            put(weights, self.members, fixed)
        weights[token] = 0
        return SiblingLaw(weights, total(weights) or 1.0)


def columns_of(h: SiblingLaw, draft: RemainingDraft, tokens: Tokens) -> Columns:
    """h, the draft and the odds of `tokens`, which have no target yet."""
    mass = gathered(draft.weights, tokens)
    waits = mass if h.weights is draft.weights else gathered(h.weights, tokens)
    beside = draft.total - mass
    if draft.top is not None:
        beside[tokens == draft.top] = draft.rest
    waits = waits / h.total
    # The mass without a token may be so small that the odds leave the range.
    odds = np.divide(waits, beside, out=np.zeros_like(waits), where=beside > 1e-300)
    return Columns(np.zeros_like(mass), waits, mass, odds)


def _total_beside(weights: Float[Tensor, " vocab"], token: int | None) -> float:
    """The sum of `weights` without that of `token`, which may be too large to be taken off again."""
    if token is None:
        return total(weights)
    return total(weights[:token]) + total(weights[token + 1 :])


@attrs.frozen(eq=False)
class FirstLaw(TriedLaw):
    """The law of a window's sibling that is tried first.

    No bit of it depends on the tokens that are judged: a rounding that did would tell of them wherever two
    classes are equally good.
    """

    window: ClassWindow

    def __getitem__(self, token: int) -> float:
        window = self.window
        f, h = window.chance_of_class(token), window.h[token]
        odds, draft = float(window.odds[token]) / window.h.total, float(window.draft.weights[token])
        better, worse = window.rivals_of_top
        if token != window.draft.top:
            # What a token takes from itself is no rival's.
            better, worse = window.rivals
            better, worse = max(better - f * draft, 0.0), max(worse - (1 - f) * odds, 0.0)
        return f * h + (1 - f) * max(h - odds * better, 0.0) + f * draft * worse

    def rejected(self, left: Float[Tensor, " vocab"], scale: float) -> Float[Tensor, " vocab"]:
        window = self.window
        h, top = window.h, window.draft.top
        after = left.sub(h.weights, alpha=scale / h.total)
        if len(window.f):
            after.add_(window.odds, alpha=scale * window.rivals[0] / h.total)
            put(after, window.members, gathered(left, window.members) - scale * self._of_members())
            if top is not None:
                after[top] = float(left[top]) - scale * self[top]
        return after.clamp_(min=0)

    def _of_members(self) -> Floats:
        """The law of all members but the draft's top."""
        f, columns = self.window.f, self.window.columns
        better, worse = self.window.rivals
        inside, outside = f * columns.draft, (1 - f) * columns.odds
        lost = np.maximum(columns.h - columns.odds * np.maximum(better - inside, 0), 0)
        return f * columns.h + (1 - f) * lost + inside * np.maximum(worse - outside, 0)
