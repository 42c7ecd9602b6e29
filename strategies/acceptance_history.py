"""How often a row's children were accepted, by the draft's probability of them and their rank."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence

import attrs
import numpy as np
from jaxtyping import Float

BOUNDS = (0.05, 0.15, 0.3, 0.5, 0.7, 0.9, 0.98)
"""Bounds between the bins of a child's probability, given that its earlier siblings failed."""

ASSUMED = (
    (0.3, 0.35, 0.4, 0.6, 0.75, 0.85, 0.95, 0.98),
    (0.05, 0.2, 0.4, 0.55, 0.65, 0.75, 0.85, 0.9),
    (0.05, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9),
)
"""Assumed rates of acceptance of a first, second and later child by bin, before any was judged."""

RANKS, BINS = len(ASSUMED), len(BOUNDS) + 1

WEIGHT = 2.0
"""The number of judged children that an assumption counts for."""

FIRST_WEIGHT = 4.0

DEPTHS = 8
"""Depths whose first children are counted apart; deeper ones count with the last."""

USUAL = (0.65, 0.3, 0.15)
"""Assumed rates of a first, second and later child whose probability is not known."""


@attrs.frozen
class Judged:
    """A child that a verifier judged: its parent was accepted, and its earlier siblings failed.

    Attributes:
        depth: of the child, from 1 on.
        rank: among its siblings.
        chance: the draft's probability of it, given that the earlier siblings failed.
        accepted: whether it was.
    """

    depth: int
    rank: int
    chance: float
    accepted: bool


@attrs.frozen
class AcceptanceHistory:
    """Fading counts of the children that a verifier judged.

    Attributes:
        judged: by rank and bin of the probability, `RANKS * BINS` numbers, flat.
        accepted: those of them that were accepted.
        first_judged: of first children, by depth.
        first_accepted: those of them that were accepted.
        tokens: emitted.
        rounds: their time, in rounds of ordinary decoding.
    """

    judged: tuple[float, ...] = (0.0,) * (RANKS * BINS)
    accepted: tuple[float, ...] = (0.0,) * (RANKS * BINS)
    first_judged: tuple[float, ...] = (0.0,) * DEPTHS
    first_accepted: tuple[float, ...] = (0.0,) * DEPTHS
    tokens: float = 0.0
    rounds: float = 0.0

    def after(
        self, children: Iterable[Judged], *, tokens: int, rounds: float, memory: float
    ) -> AcceptanceHistory:
        """Returns the history after one more round; earlier rounds count `memory` times as much."""
        judged, accepted, first_judged, first_accepted = (
            [memory * of for of in counts]
            for counts in (self.judged, self.accepted, self.first_judged, self.first_accepted)
        )
        for child in children:
            place = min(child.rank, RANKS - 1) * BINS + bisect(BOUNDS, child.chance)
            judged[place] += 1
            accepted[place] += child.accepted
            if not child.rank:
                depth = min(child.depth, DEPTHS) - 1
                first_judged[depth] += 1
                first_accepted[depth] += child.accepted
        return AcceptanceHistory(
            tuple(judged),
            tuple(accepted),
            tuple(first_judged),
            tuple(first_accepted),
            memory * self.tokens + tokens,
            memory * self.rounds + rounds,
        )


class AcceptanceRates:
    """Estimated rates of acceptance of a row's next children.

    Attributes:
        by_chance: by rank and bin of the probability.
        by_rank: by rank, for a child whose token is not known.
        by_depth: of a first child whose token is not known, by depth.
    """

    def __init__(
        self, judged: Float[np.ndarray, "ranks bins"], accepted: Float[np.ndarray, "ranks bins"],
        first_judged, first_accepted, like: AcceptanceRates | None = None,
    ) -> None:
        assumed = np.array(ASSUMED) if like is None else np.array(like.by_chance)
        usual = np.array(USUAL) if like is None else np.array(like.by_rank)
        self.by_chance = ((accepted + WEIGHT * assumed) / (judged + WEIGHT)).tolist()
        self.by_rank = ((accepted.sum(1) + WEIGHT * usual) / (judged.sum(1) + WEIGHT)).tolist()
        self.by_depth: list[float] = []
        above = USUAL[0]
        for depth in range(DEPTHS):
            guess = above if like is None else like.by_depth[depth]
            above = (first_accepted[depth] + FIRST_WEIGHT * guess) / (first_judged[depth] + FIRST_WEIGHT)
            self.by_depth.append(float(above))
        own = np.array(self.by_depth)
        self.doubt = np.sqrt(own * (1 - own) / (first_judged + FIRST_WEIGHT)) if like is None else like.doubt

    @classmethod
    def of(cls, histories: Sequence[AcceptanceHistory]) -> list[AcceptanceRates]:
        """Returns each row's rates; rows that have judged little lean on the others."""
        counts = [
            np.array([getattr(one, name) for one in histories])
            for name in ("judged", "accepted", "first_judged", "first_accepted")
        ]
        counts[:2] = [of.reshape(-1, RANKS, BINS) for of in counts[:2]]
        pooled = cls(*(of.sum(0) for of in counts))
        if len(histories) == 1:
            return [pooled]
        return [cls(*of, like=pooled) for of in zip(*counts, strict=True)]

    def __call__(self, rank: int, chance: float) -> float:
        """Returns the rate of a child of this rank, drawn with this probability after its siblings."""
        return self.by_chance[min(rank, RANKS - 1)][bisect(BOUNDS, chance)]

    def unknown(self, rank: int) -> float:
        """Returns the rate of a child of this rank before its token is drawn."""
        return self.by_rank[min(rank, RANKS - 1)]
