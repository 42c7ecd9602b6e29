"""Siblings put in an order that helps: what the draft under-proposes is tried first."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from draftwood import Randomness
from draftwood.proposals import Proposal, WithoutReplacement, check_distribution
from draftwood.strategies.verifiers.residual import DrawnOrder, Law, Residual, SiblingOrder, Trial
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

    Where an adaptive policy decides whether a second sibling exists, its absence tells something of the
    first. With `phantoms` the window opens on the first pair alone, and where there is no second sibling
    one is drawn here, from D without the first; later siblings are tried as drawn.

    Source: draftwood.
    """

    tokens: Sequence[int]
    proposal: WithoutReplacement
    rng: Randomness
    phantoms: bool = False
    _tried: list[int] = attrs.field(factory=list, init=False)
    _next: int = attrs.field(default=0, init=False)  # place of the next sibling that was not looked at
    _held: Trial | None = attrs.field(default=None, init=False)

    def next(self, residual: Residual) -> Trial | None:
        if self._next == 0:
            draft = self.proposal.p
            check_distribution(draft, "The draft distribution of WithoutReplacement")
            self._held = self._drawn()
            if len(self.tokens) > 1 or self.phantoms:
                return self._try(self._window(residual))
        elif self._held is None:
            return self._try(self._drawn()) if self._next < len(self.tokens) else None
        elif self._next < len(self.tokens) and not self.phantoms:
            return self._try(self._window(residual))
        held, self._held = self._held, None
        return self._try(held)

    def _try(self, trial: Trial) -> Trial:
        self._tried.append(trial.token)
        return trial

    def _drawn(self) -> Trial:
        """The next sibling with its law given those tried; at first it is the one to be held."""
        place = self._next
        self._next += 1
        weights = self.proposal.p
        return Trial(place, self.tokens[place], Law.without(weights, self._tried))

    def _window(self, residual: Residual) -> Trial:
        """The first of the held and the next sibling; the other one becomes the held one."""
        assert self._held is not None
        window = Window.open(self._held.law, self.proposal.p, self._tried, residual)
        held = self._held
        if self._next < len(self.tokens):
            place, token = self._next, self.tokens[self._next]
        else:
            rest = self.proposal.p.clone()
            rest[held.token] = 0
            if not bool(rest.any()):
                self._held = None
                return held
            place, token = None, self.rng.choose(rest)
        self._next += 1
        first, second = (held.place, held.token), (place, token)
        if self.rng.accept(window.swaps(held.token, token)):
            first, second = second, first
        self._held = Trial(*second, window.second(first[1]))
        return Trial(*first, window.first())


def in_class_order(
    tokens: Sequence[int], proposal: Proposal, rng: Randomness, phantoms: bool
) -> SiblingOrder:
    """Class order where the law is without replacement; siblings of other laws stay as drawn."""
    if isinstance(proposal, WithoutReplacement):
        return ClassOrder(tokens, proposal, rng, phantoms)
    return DrawnOrder(tokens, proposal)
