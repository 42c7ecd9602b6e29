"""Siblings put in an order that helps: what the draft under-proposes is tried first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood import Randomness
from draftwood.proposals import check_distribution
from draftwood.strategies.verifiers.residual import Law, Residual, SiblingOrder, Trial
from draftwood.strategies.verifiers.window import Window


@attrs.define(eq=False)
class ClassOrder(SiblingOrder):
    """Siblings without replacement, a window of two at a time, the under-proposed one first.

    One sibling is *held*, by the law h given what was tried; the next one is drawn by D without the tried
    tokens X and the held one. Every token y belongs to the class H with a chance f(y) that is chosen from
    the target, h, D and X alone. When the held token falls outside H and the next one inside, they change
    places. With q(z) = 1 - D(X) - D(z), A = sum f D and B = sum (1 - f) h / q, the one tried first has

        p1(y) = h(y) (1 - (1 - f(y)) (A - f(y) D(y)) / q(y)) + f(y) D(y) (B - (1 - f(y)) h(y) / q(y))

    and the other one, given the first x, has a law proportional to

        p2(z) = h(x) D(z) / q(x) (1 - (1 - f(x)) f(z)) + D(x) f(x) (1 - f(z)) h(z) / q(z),   z not x.

    It is the held one of the next window. Rejection may take siblings in any order whose laws it knows
    (RSD, theorem 3.1), so every f is lossless, and f = 0 is the drawn order. Trying an under-proposed
    token first (high T / D) leaves the over-proposed ones, which compete for little target, to the nodes
    that have nothing else.

    *Levels* order siblings of one class. A sibling's level is random with fixed `chances`, whatever its
    token, so that it changes no token's law but through the order; what it tells may lie below the
    sibling (`Foresight`). A level is looked at in a window alone, and the laws are then those of token
    and level together.

    Where an adaptive policy decides whether a second sibling exists, its absence tells something of the
    first. With `phantoms` the window opens on the first pair alone, and where there is no second sibling
    one is drawn here, from D without the first; later siblings are tried as drawn.

    Attributes:
        tokens: of the siblings, in drawn order.
        p: the draft's distribution D.
        first: the law of the first sibling, where more is known of it than D.
        rng: the verification stream.
        phantoms: whether the tree is adaptive.
        chances: of the levels `[levels]`; one level means none.
        level: the level of the sibling at a place.

    Source: draftwood.
    """

    tokens: Sequence[int]
    p: Float[Tensor, " vocab"]
    first: Float[Tensor, " vocab"]
    rng: Randomness
    phantoms: bool = False
    chances: Float[Tensor, " levels"] | None = None
    level: Callable[[int], int] = lambda place: 0
    _tried: list[int] = attrs.field(factory=list, init=False)
    _next: int = attrs.field(default=0, init=False)  # place of the next sibling that was not looked at
    _held: _Held | None = attrs.field(default=None, init=False)

    def next(self, residual: Residual) -> Trial | None:
        if self._next == 0:
            check_distribution(self.p, "The draft distribution of WithoutReplacement")
            self._next = 1
            if len(self.tokens) == 1 and not self.phantoms:
                return Trial(0, self.tokens[0], Law(self.first))
            chances = self.first.new_ones(1) if self.chances is None else self.chances
            self._held = _Held(0, self.tokens[0], self.level(0), chances[:, None] * self.first)
            return self._window(residual, chances)
        if self._held is None:
            return self._as_drawn()
        if self._next < len(self.tokens) and not self.phantoms:
            return self._window(residual, self._held.h.new_ones(1) if self.chances is None else self.chances)
        held, self._held = self._held, None
        self._tried.append(held.token)
        return held.trial()

    def _as_drawn(self) -> Trial | None:
        if self._next >= len(self.tokens):
            return None
        place, token = self._next, self.tokens[self._next]
        law = Law.without(self.p, self._tried)
        self._next += 1
        self._tried.append(token)
        return Trial(place, token, law)

    def _window(self, residual: Residual, chances: Tensor) -> Trial:
        """The better one of the held and the next sibling; the other one becomes the held one."""
        held = self._held
        assert held is not None
        place: int | None = self._next
        if self._next < len(self.tokens):
            token = self.tokens[self._next]
            level = self.level(self._next)
        else:
            rest = self.p.clone()
            rest[held.token] = 0
            if not bool(rest.any()):
                self._held = None
                return held.trial()
            place, token, level = None, self.rng.choose(rest), 0
        self._next += 1
        window = Window.open(
            held.h,
            self.p,
            chances=chances,
            tried=self._tried,
            further=0 if self.phantoms else len(self.tokens) - self._next,
            residual=residual,
        )
        first, second = held, _Held(place, token, level, held.h)
        ranks = [
            len(chances) * self.rng.accept(window.chance_of_class(one.token)) + one.level
            for one in (first, second)
        ]
        if ranks[1] > ranks[0]:
            first, second = second, first
        came = first.place != held.place
        self._tried.append(first.token)
        if self.chances is None:
            self._held = attrs.evolve(second, h=window.second(first.token))
            return Trial(first.place, first.token, window.first())
        h = window.second_of_level(first.token, rank=max(ranks), came=came)
        self._held = attrs.evolve(second, h=h)
        return Trial(first.place, first.token, window.first(), window.levels(first.token, came))


@attrs.frozen(eq=False)
class _Held:
    """A sibling that waits, with its law jointly with its level `[levels, vocab]`."""

    place: int | None
    token: int
    level: int
    h: Float[Tensor, "levels vocab"]

    def trial(self) -> Trial:
        if len(self.h) == 1:
            return Trial(self.place, self.token, Law(self.h[0]))
        of_token = self.h[:, self.token]
        total = of_token.sum()
        levels = of_token / total if float(total) > 0 else torch.full_like(of_token, 1 / len(of_token))
        return Trial(self.place, self.token, Law(self.h.sum(0)), levels)
