"""Siblings judged as one set: each in a place and with an allowance that no sibling's token decides."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
from jaxtyping import Float
from torch import Tensor

from draftwood import Randomness
from draftwood.proposals import Proposal, WithoutReplacement
from draftwood.set_laws import FixedTimeSet
from draftwood.strategies.verifiers.race_flows import Floats, Flows, SetLaw, flows_of, flows_of_all
from draftwood.strategies.verifiers.residual import Candidate, DrawnOrder, Residual, SiblingOrder, TriedLaw
from draftwood.strategies.verifiers.vocabulary import checked_total

_LEAST = 1e-60
_LATEST = 1e300


@attrs.define(eq=False)
class RaceOrder(SiblingOrder):
    """All siblings of a node, tried in an order of the whole vocabulary, each with its allowance.

    What every token receives is known beforehand (see `flows_of`). When the last sibling has failed, that is
    taken from the target, and the rest is the node's residual.

    Attributes:
        tokens: of the siblings, in drawn order.
        odds: of every token, or its draft probability; 0 of those that cannot be drawn, `[vocab]`.
        law: of the siblings as a set; None where they are all that can be drawn.

    Source: draftwood.
    """

    tokens: Sequence[int]
    odds: Floats
    law: SetLaw | None
    _flows: Flows | None = attrs.field(default=None, init=False)
    _waiting: list[Candidate] = attrs.field(factory=list, init=False)

    def next(self, residual: Residual) -> Candidate | None:
        if self._flows is None:
            target = residual.weights.double().cpu().numpy() / residual.scale
            if self.law is None:
                self._flows = flows_of_all(np.flatnonzero(self.odds), target)
            else:
                self._flows = flows_of(self.law, target)
            self._waiting = self._candidates(target)
        if self._waiting:
            return self._waiting.pop()
        residual.give(self._flows.tokens, self._flows.flows)
        return None

    def _candidates(self, target: Floats) -> list[Candidate]:
        """The siblings that have an allowance, the last one to be tried first."""
        assert self._flows is not None
        index = {token: number for number, token in enumerate(self.tokens)}
        places = np.flatnonzero(np.isin(self._flows.tokens, self.tokens) & (self._flows.allowances > 0))
        candidates = []
        for place in places[::-1].tolist():
            token = int(self._flows.tokens[place])
            arriving = Arriving(float(target[token]) / float(self._flows.allowances[place]))
            candidates.append(Candidate(index[token], token, arriving))
        return candidates


@attrs.frozen
class Arriving(TriedLaw):
    """The chance that a sibling is tried, from which its allowance follows. Its failure takes nothing yet."""

    chance: float

    def __getitem__(self, token: int) -> float:
        return self.chance

    def rejected(self, left: Float[Tensor, " vocab"], scale: float) -> Float[Tensor, " vocab"]:
        return left


def race_order(tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> SiblingOrder:
    """Race order for siblings whose law as a set is known, drawn order for the others.

    Of three siblings and more drawn without replacement, the law has a closed form given the time at which
    the next one would have come, if tokens came at exponential times. The time's law given the drawn order
    is that of a sum: one gap for each mass that was left. So it is drawn here, from `rng`.
    """
    match proposal:
        case WithoutReplacement() if len(tokens) > 1:
            checked_total(proposal.p, "The draft distribution of WithoutReplacement")
            odds = proposal.p.double().cpu().numpy()
            odds = odds / odds.sum()
        case FixedTimeSet() if len(tokens) == proposal.count:
            odds = proposal.odds
        case _:
            return DrawnOrder(tokens, proposal)
    if len(set(tokens)) < len(tokens) or not odds[list(tokens)].all():
        return DrawnOrder(tokens, proposal)  # such siblings were not drawn by this law
    if np.count_nonzero(odds > _LEAST) < len(tokens):
        return DrawnOrder(tokens, proposal)  # powers of such numbers leave the range
    if len(tokens) >= np.count_nonzero(odds):
        return RaceOrder(tokens, odds, None)
    if isinstance(proposal, FixedTimeSet):
        return RaceOrder(tokens, odds, SetLaw.of_odds(odds, len(tokens)))
    if len(tokens) == 2:
        return RaceOrder(tokens, odds, SetLaw.of_pair(odds))
    time = min(rng.arrival(masses_left(odds, tokens)), _LATEST)
    return RaceOrder(tokens, odds, SetLaw.at_arrival(odds, len(tokens), time))


def masses_left(draft: Floats, tokens: Sequence[int]) -> list[float]:
    """What the draft holds before each of `tokens` is taken away, and behind the last of them."""
    rest = draft.copy()
    rest[list(tokens)] = 0
    left = [float(rest.sum())]
    for token in reversed(tokens):
        left.append(left[-1] + float(draft[token]))
    return left[::-1]
