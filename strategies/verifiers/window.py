"""Two siblings without replacement, the better one first: how they are ranked, and their laws."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import attrs
import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from draftwood.strategies.verifiers.class_choice import STAKE, Columns, choose_class
from draftwood.strategies.verifiers.residual import Law, Residual, TriedLaw
from draftwood.strategies.verifiers.vocabulary import above, checked_total, gathered, largest, put, total

Floats = NDArray[np.float64]


@attrs.frozen(eq=False)
class RemainingDraft:
    """The draft's distribution D with the tried tokens at 0.

    Attributes:
        weights: `[vocab]`; not to be written to.
        total: their sum.
        top: the token that holds more than half of that, or None.
        rest: the sum of all others, where there is such a token: their sum is not lost in the total.
        stakes: tokens that may be of the class, `[n]`.
    """

    weights: Float[Tensor, " vocab"]
    total: float
    top: int | None
    rest: float
    stakes: Int[Tensor, " n"]

    @classmethod
    def of(cls, p: Float[Tensor, " vocab"]) -> RemainingDraft:
        """Of D itself.

        Raises:
            InvalidDistribution: `p` is none.
        """
        whole = checked_total(p, "The draft distribution of WithoutReplacement")
        if p.dtype not in (torch.float32, torch.float64):
            p = p.float()
        return cls._of(p, whole, above(p, STAKE))

    @classmethod
    def _of(cls, weights: Float[Tensor, " vocab"], whole: float, stakes: Int[Tensor, " n"]) -> RemainingDraft:
        top, most = largest(weights)
        if most <= whole / 2:
            return cls(weights, whole, None, whole, stakes)
        rest = total(weights[:top]) + total(weights[top + 1 :])
        return cls(weights, rest + most, top, rest, stakes)

    def without(self, token: int) -> RemainingDraft:
        """What remains when `token` has been tried too."""
        weights = self.weights.clone()
        weights[token] = 0
        return self._of(weights, total(weights), self.stakes[self.stakes != token])

    @property
    def least_beside(self) -> float:
        """About the least that it holds beside any one token."""
        return self.total / 2 if self.top is None else self.rest

    def double(self) -> RemainingDraft:
        return attrs.evolve(self, weights=self.weights.double())

    def beside(self) -> Float[Tensor, " vocab"]:
        """What it holds beside each token, `[vocab]`."""
        beside = self.total - self.weights
        if self.top is not None:
            beside[self.top] = self.rest
        return beside


@attrs.frozen(eq=False)
class Window:
    """A waiting sibling z, and the next one, drawn by D without the tried tokens and z.

    Each is of the class with a chance f(y) that depends on its token y. The next one goes first if it
    belongs to the class and the waiting one does not.

    Attributes:
        h: the waiting one's law.
        draft: D without the tried tokens.
        odds: h over q, times the total of h, with q(z) what D holds beside the tried tokens and z, `[vocab]`.
        odds_total: the sum of the odds beside the draft's `top`, over the total of h.
        members: tokens that may be of the class, in order, `[members]`.
        f: the chances with which they are, float64 on the host, `[members]`.
    """

    h: Law
    draft: RemainingDraft
    odds: Float[Tensor, " vocab"]
    odds_total: float
    members: Int[Tensor, " members"]
    f: Floats

    @classmethod
    def open(cls, h: Law, draft: RemainingDraft, *, further: int, residual: Residual) -> Window:
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
        # A token that is all that is left has nobody beside it, and is nobody's rival.
        if not draft.total > 0:
            odds.zero_()
        elif draft.top is not None and not float(odds[draft.top]) < math.inf:
            odds[draft.top] = 0
        none = draft.stakes[:0]
        window = cls(h, draft, odds, _total_beside(odds, draft.top) / h.total, none, np.zeros(0))
        f = window._choice(residual, further)
        live = np.flatnonzero(f)
        return attrs.evolve(window, members=draft.stakes[torch.from_numpy(live)], f=f[live])

    def _choice(self, residual: Residual, further: int) -> Floats:
        """The chances of the tokens that may be of the class."""
        stakes, draft = self.draft.stakes, self.draft
        if not len(stakes):
            return np.zeros(0)
        _, h, weights, odds = self._columns(stakes).rows()
        target = gathered(residual.weights, stakes) / residual.scale
        top_odds = 0.0 if draft.top is None else float(self.odds[draft.top]) / self.h.total
        sums = (residual.allowance, 1.0, draft.total, self.odds_total + top_odds)
        whole = Columns(*(np.array([number]) for number in sums))
        return choose_class(Columns(target, h, weights, odds), whole, further=further)

    def _columns(self, tokens: Int[Tensor, " n"]) -> Columns:
        """h, the draft and the odds of `tokens`; no target."""
        h, odds = (gathered(weights, tokens) / self.h.total for weights in (self.h.weights, self.odds))
        return Columns(h[:0], h, gathered(self.draft.weights, tokens), odds)

    @cached_property
    def _member_columns(self) -> Columns:
        return self._columns(self.members)

    def chance_of_class(self, token: int) -> float:
        """f(token)."""
        return float(self.f[self.members.numpy(force=True) == token].sum())

    @cached_property
    def better(self) -> float:
        """What beats a waiting one outside the class: the sum of f D."""
        return float(self.f @ self._member_columns.draft)

    @cached_property
    def worse(self) -> float:
        """Over q, the waiting ones that one of the class beats: the sum of (1 - f) h / q."""
        return self._rivals_of_top[1] + self._top_odds * (1 - self._top_chance)

    @cached_property
    def _top_chance(self) -> float:
        return 0.0 if self.draft.top is None else self.chance_of_class(self.draft.top)

    @cached_property
    def _top_odds(self) -> float:
        return 0.0 if self.draft.top is None else float(self.odds[self.draft.top]) / self.h.total

    @cached_property
    def _rivals_of_top(self) -> tuple[float, float]:
        """`better` and `worse` without the draft's top: what it takes from itself would cancel too badly."""
        others = self.members.numpy(force=True) != (-1 if self.draft.top is None else self.draft.top)
        f, columns = self.f[others], self._member_columns
        return float(f @ columns.draft[others]), max(self.odds_total - float(f @ columns.odds[others]), 0.0)

    def first(self) -> TriedLaw:
        """The law of the one that is tried first."""
        return FirstLaw(self)

    def second(self, token: int) -> Law:
        """The law of the other one, given the `token` that went first."""
        belongs = self.chance_of_class(token)
        stayed, came = float(self.odds[token]) / self.h.total, float(self.draft.weights[token]) * belongs
        # Of any size at all; these are near 1 in sum.
        size = stayed * self.draft.total + came * (self.odds_total + self._top_odds)
        if not size > 0:
            return Law(torch.zeros_like(self.draft.weights))
        stayed, came = stayed / size, came / size
        weights = self.draft.weights * stayed
        if came > 0:
            weights.add_(self.odds, alpha=came / self.h.total)
        f, columns = self.f, self._member_columns
        if len(f):
            fixed = stayed * (1 - (1 - belongs) * f) * columns.draft + came * (1 - f) * columns.odds
            put(weights, self.members, fixed)
        weights[token] = 0
        return Law(weights, total(weights) or 1.0)


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

    window: Window

    def __getitem__(self, token: int) -> float:
        window = self.window
        f, h = window.chance_of_class(token), window.h[token]
        odds, draft = float(window.odds[token]) / window.h.total, float(window.draft.weights[token])
        return float(self._of(token == window.draft.top, f, h, odds, draft))

    def rejected(self, left: Float[Tensor, " vocab"], scale: float) -> Float[Tensor, " vocab"]:
        window = self.window
        h, top = window.h, window.draft.top
        after = left.sub(h.weights, alpha=scale / h.total)
        if len(window.f):
            after.add_(window.odds, alpha=scale * window.better / h.total)
            columns, tokens = window._member_columns, window.members
            is_top = tokens.numpy(force=True) == (-1 if top is None else top)
            p1 = self._of(is_top, window.f, columns.h, columns.odds, columns.draft)
            put(after, tokens, gathered(left, tokens) - scale * p1)
            if top is not None:
                after[top] = float(left[top]) - scale * self[top]
        return after.clamp_(min=0)

    def _of(self, top: NDArray[np.bool_] | bool, f: Any, h: Any, odds: Any, draft: Any) -> Any:
        """p1 of tokens with these numbers; `top` says which one is the draft's top."""
        window = self.window
        rivals = window._rivals_of_top
        # What a token takes from itself is no rival's.
        better = np.where(top, rivals[0], window.better - f * draft)
        worse = np.where(top, rivals[1], window.worse - (1 - f) * odds)
        lost = np.maximum(h - odds * np.maximum(better, 0), 0)
        return f * h + (1 - f) * lost + f * draft * np.maximum(worse, 0)
