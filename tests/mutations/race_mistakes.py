"""Mistakes in the verifier that judges all siblings of a node as one set."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import pytest
from torch import Tensor

from draftwood import Proposal, Randomness, WithoutReplacement
from draftwood.strategies.verifiers.orders import race_flows
from draftwood.strategies.verifiers.orders import race_order as production
from draftwood.strategies.verifiers.orders.race_laws import Given
from draftwood.strategies.verifiers.orders.race_order import RaceOrder, RaceTries
from draftwood.strategies.verifiers.orders.sibling_order import Tries
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.residual import Candidate, Residual
from tests.mutations.mistake import Mistake

_candidates = RaceTries._candidates


def _wanted_first(self: RaceTries, target: Tensor, scale: float) -> list[Candidate]:
    """The siblings by the target's wish, with the allowances of their places in another order."""
    return sorted(_candidates(self, target, scale), key=lambda one: float(target[one.token]))


def _order_by_the_first(self: RaceTries, residual: Residual) -> Candidate | None:
    """Ranks the tokens the other way round where the first drawn sibling is odd."""
    if self._flows is not None or self.tokens[0] % 2 == 0:
        return _next(self, residual)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(race_flows, "_ranked", lambda keys: _ranked(-keys))
        return _next(self, residual)


_next = RaceTries.next
_ranked = race_flows._ranked


def _masses_of_the_likely(weights: Tensor, tokens: Sequence[int]) -> list[float]:
    """Returns the draft's mass before each of its likeliest tokens, whichever were drawn."""
    return _masses(weights, weights.topk(len(tokens)).indices.tolist())


_masses = production.masses_left


def _without_a_mark(weights: Tensor, count: int, factor: float) -> Given:
    return Given((weights * factor).clamp(max=36).expm1(), count)


def _pair_without_a_mark(weights: Tensor, total: float) -> Given:
    return Given(weights / total, 2)


class Drawn(RaceTraversal):
    """Accepts only the law in which there is a time, so that its checks are few."""

    laws = frozenset({WithoutReplacement})


class OrderOfTheLikely(RaceOrder):
    """Leaves out a sibling of little draft probability, and takes the others for all that were drawn."""

    def tries(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> Tries:
        assert isinstance(proposal, WithoutReplacement)
        kept = len(tokens)
        while kept > 1 and float(proposal.p[tokens[kept - 1]]) < 0.3:
            kept -= 1
        return super().tries(tokens[:kept], proposal, rng)


@attrs.frozen
class DropsTheUnlikely(Drawn):
    """Walks in that order."""

    order: OrderOfTheLikely = attrs.field(factory=OrderOfTheLikely, init=False)


class RaceByWord(Drawn):
    """Says that it holds on adaptive trees."""

    adaptive = True  # type: ignore[assignment]


def _race(name: str, story: str, owner: Any, attribute: str, wrong: Any) -> Mistake:
    return Mistake(name, story, "verifier", Drawn, patches=[(owner, attribute, wrong)])


MISTAKES = [
    _race(
        "siblings tried by the target's wish, by the allowances of a race",
        "the order must look at no drawn token",
        RaceTries,
        "_candidates",
        _wanted_first,
    ),
    _race(
        "a race ranked by what was drawn",
        "the order must look at no drawn token",
        RaceTries,
        "next",
        _order_by_the_first,
    ),
    _race(
        "a clock that does not know the drawn tokens",
        "the time's law depends on the masses that they left",
        production,
        "masses_left",
        _masses_of_the_likely,
    ),
    _race(
        "the mark of the next token forgotten",
        "given the time, the set's law has one more factor",
        production,
        "Arrival",
        _without_a_mark,
    ),
    _race(
        "the mark of a pair forgotten",
        "D(a) D(b) is the law of two draws with replacement that differ",
        production,
        "Pair",
        _pair_without_a_mark,
    ),
    Mistake(
        "a sibling dropped after it was drawn, by the verifier",
        "unlikely ones are seldom accepted",
        "verifier",
        Drawn,
        DropsTheUnlikely,
    ),
    Mistake(
        "race verification said to hold on adaptive trees",
        "it looks at all siblings at once",
        "verifier",
        Drawn,
        RaceByWord,
    ),
]
