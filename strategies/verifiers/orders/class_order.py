"""Siblings put in an order that helps: what the draft under-proposes is tried first."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from jaxtyping import Float
from torch import Tensor

from draftwood import Randomness
from draftwood.laws.proposals import Proposal, WithoutReplacement
from draftwood.strategies.verifiers.orders.class_window import ClassWindow, RemainingDraft
from draftwood.strategies.verifiers.orders.sibling_order import DrawnTries, SiblingOrder, Tries
from draftwood.strategies.verifiers.residual import Candidate, Residual, SiblingLaw


@attrs.frozen
class ClassOrder(SiblingOrder):
    """Siblings without replacement, a window of two at a time, the under-proposed one first.

    Siblings of other laws are tried as drawn.

    One sibling *waits*, with the law h given what was tried; the next one is drawn by D without the tried
    tokens X and the waiting one. Every token y belongs to the class H with a chance f(y) that is chosen from
    only the target, h, D and X. When the waiting token falls outside H and the next one inside, they change
    places. With q(z) = 1 - D(X) - D(z), A = sum f D and B = sum (1 - f) h / q, the one tried first has

        p1(y) = h(y) (1 - (1 - f(y)) (A - f(y) D(y)) / q(y)) + f(y) D(y) (B - (1 - f(y)) h(y) / q(y))

    and the other one, given the first x, has a law proportional to

        p2(z) = h(x) D(z) / q(x) (1 - (1 - f(x)) f(z)) + D(x) f(x) (1 - f(z)) h(z) / q(z),   z not x.

    It is the waiting one of the next window. Rejection may take siblings in any order whose laws it knows
    (RSD, theorem 3.1), so every f is lossless, and f = 0 is the drawn order. Trying an under-proposed
    token first (high T / D) leaves the over-proposed ones, which compete for little target, to the nodes
    that have nothing else.

    The laws hold for siblings whose number tells nothing of their tokens, nor of what came below
    them: the trees must not be adaptive (see `TreePolicy`).

    Source: draftwood.
    """

    adaptive = False

    def tries(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> Tries:
        if isinstance(proposal, WithoutReplacement):
            return ClassTries(tokens, proposal.p, rng)
        return DrawnTries(tokens, proposal)


@attrs.define(eq=False)
class ClassTries(Tries):
    """The children of one node in class order.

    Attributes:
        tokens: of the siblings, one or more, in drawn order.
        p: the draft's distribution D.
        rng: the verification stream.
    """

    tokens: Sequence[int]
    p: Float[Tensor, " vocab"]
    rng: Randomness
    _next: int = attrs.field(default=0, init=False)  # number of the next sibling that was not looked at
    _waiting: _Waiting | None = attrs.field(default=None, init=False)
    _draft: RemainingDraft | None = attrs.field(default=None, init=False)
    _judged: tuple[ClassWindow, int] | None = attrs.field(default=None, init=False)  # and what went first

    def next(self, residual: Residual) -> Candidate | None:
        if self._next == 0:
            self._draft = RemainingDraft.of(self.p)
            self._waiting, self._next = _Waiting(0, self.tokens[0], SiblingLaw(self._draft.weights)), 1
        if self._waiting is None:
            return None
        waiting = self._settled(self._waiting)
        if self._next < len(self.tokens):
            return self._window(residual, waiting)
        self._waiting = None
        return Candidate(waiting.index, waiting.token, waiting.law)

    def _settled(self, waiting: _Waiting) -> _Waiting:
        """The waiting sibling with its law, now that the one before it has failed."""
        if self._judged is None:
            return waiting
        (window, first), self._judged = self._judged, None
        if self._next < len(self.tokens):
            self._draft = window.draft.without(first)
        return attrs.evolve(waiting, law=window.second(first))

    def _window(self, residual: Residual, waiting: _Waiting) -> Candidate:
        """The better one of the waiting and the next sibling; the other one waits for the next window."""
        assert self._draft is not None
        following = _Waiting(self._next, self.tokens[self._next], waiting.law)
        self._next += 1
        further = len(self.tokens) - self._next
        window = ClassWindow.open(waiting.law, self._draft, further=further, residual=residual)
        stays, comes = (
            self.rng.accept(window.chance_of_class(sibling.token)) for sibling in (waiting, following)
        )
        first, second = (following, waiting) if comes and not stays else (waiting, following)
        self._waiting, self._judged = second, (window, first.token)
        return Candidate(first.index, first.token, window.first())


@attrs.frozen(eq=False)
class _Waiting:
    """A sibling that waits, and its law given what was tried."""

    index: int
    token: int
    law: SiblingLaw
