"""Counts of a row's accepted children, and the rates that these give for the next ones."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
from jaxtyping import Float

from draftwood import TokenTree

BOUNDS = (0.05, 0.15, 0.3, 0.5, 0.7, 0.9, 0.98)
"""Bounds between the bins of a child's probability, given that its earlier siblings failed."""

ASSUMED = (
    (0.3, 0.35, 0.4, 0.6, 0.75, 0.85, 0.95, 0.98),
    (0.05, 0.2, 0.4, 0.55, 0.65, 0.75, 0.85, 0.9),
    (0.05, 0.2, 0.35, 0.5, 0.6, 0.7, 0.8, 0.9),
)
"""Assumed rates of acceptance of a first, second and later child by bin, before any was judged."""

USUAL = (0.65, 0.3, 0.15)
"""Assumed rates of a first, second and later child whose probability is not known."""

WEIGHT = 2.0
"""Judged children that such an assumption counts for."""

DEPTHS = 8
"""Depths whose first children are counted apart; deeper ones count with the last."""

FIRST_WEIGHT = 4.0
"""Judged first children of a depth that the assumption about them counts for."""

RANKS, BINS = len(ASSUMED), len(BOUNDS) + 1

Counts = tuple[float, ...]


@attrs.frozen
class Judged:
    """A child that a verifier judged: its parent was accepted, and its earlier siblings failed.

    Attributes:
        depth: of the child, from 1 on.
        rank: among its siblings, from 0 on.
        chance: the draft's probability of it, given that the earlier siblings failed.
        accepted: whether it was.
    """

    depth: int
    rank: int
    chance: float
    accepted: bool


def judged_children(tree: TokenTree, path: Sequence[int], chances: Sequence[float]) -> Iterator[Judged]:
    """Yields the children that a verifier judged on its way along an accepted path.

    Args:
        tree: that it judged.
        path: its accepted nodes, from the root on.
        chances: the draft's probability of every node but the root, given that its earlier siblings failed.
    """
    accepted = set(path)
    for depth, node in enumerate(path, start=1):
        for rank, child in enumerate(tree.children(node)):
            yield Judged(depth, rank, chances[child - 1], child in accepted)
            if child in accepted:
                break


@attrs.frozen
class AcceptanceHistory:
    """Fading counts over the rounds of a row.

    Attributes:
        judged: children, by rank and bin of their probability: `RANKS * BINS` numbers, flat.
        accepted: the accepted ones among them.
        first_judged: first children, by depth: `DEPTHS` numbers.
        first_accepted: the accepted ones among them.
        tokens: emitted.
        time: of the rounds, in rounds of ordinary decoding of the same rows.
        faded: what the counts of children still count, after rounds in which none was judged.
    """

    judged: Counts = (0.0,) * (RANKS * BINS)
    accepted: Counts = (0.0,) * (RANKS * BINS)
    first_judged: Counts = (0.0,) * DEPTHS
    first_accepted: Counts = (0.0,) * DEPTHS
    tokens: float = 0.0
    time: float = 0.0
    faded: float = 1.0

    def after(
        self, children: Iterable[Judged], *, tokens: int, time: float, memory: float
    ) -> AcceptanceHistory:
        """Returns the history after one more round; earlier rounds count `memory` times as much."""
        judged_now, faded = list(children), memory * self.faded
        tokens_now, time_now = memory * self.tokens + tokens, memory * self.time + time
        counts = self.judged, self.accepted, self.first_judged, self.first_accepted
        if not judged_now:  # of many rows without a tree, in every round
            return AcceptanceHistory(*counts, tokens_now, time_now, faded)
        judged, accepted, first_judged, first_accepted = ([faded * count for count in of] for of in counts)
        for child in judged_now:
            place = min(child.rank, RANKS - 1) * BINS + bisect(BOUNDS, child.chance)
            judged[place] += 1
            accepted[place] += child.accepted
            if child.rank == 0:
                depth = min(child.depth, DEPTHS) - 1
                first_judged[depth] += 1
                first_accepted[depth] += child.accepted
        return AcceptanceHistory(
            tuple(judged),
            tuple(accepted),
            tuple(first_judged),
            tuple(first_accepted),
            tokens_now,
            time_now,
        )


@attrs.frozen
class AcceptanceRates:
    """Estimated rates at which a row's next children are accepted, once their parent is.

    Attributes:
        by_chance: by rank and bin of the probability.
        by_rank: by rank, of a child whose token is not known yet.
        by_depth: by depth, of a first child whose probability is not known yet.
    """

    by_chance: Sequence[Sequence[float]]
    by_rank: Sequence[float]
    by_depth: Sequence[float]

    def known(self, rank: int, chance: float) -> float:
        """Returns the rate of a child of this rank, drawn with this probability after its siblings."""
        return self.by_chance[min(rank, RANKS - 1)][bisect(BOUNDS, chance)]

    def unknown(self, rank: int) -> float:
        """Returns the rate of a child of this rank before its token is drawn."""
        return self.by_rank[min(rank, RANKS - 1)]

    def first(self, depth: int) -> float:
        """Returns the rate of a first child at `depth`."""
        return self.by_depth[min(depth, DEPTHS) - 1]


@attrs.frozen(eq=False)
class RowRates:
    """The rates of several rows side by side.

    Attributes:
        by_chance: `[rows, ranks, bins]`; this and the next two are as in `AcceptanceRates`.
        by_rank: `[rows, ranks]`.
        by_depth: `[rows, depths]`.
        doubt: standard errors of what all rows together say of `by_depth`, `[depths]`.
    """

    by_chance: Float[np.ndarray, "rows ranks bins"]
    by_rank: Float[np.ndarray, "rows ranks"]
    by_depth: Float[np.ndarray, "rows depths"]
    doubt: Float[np.ndarray, " depths"]

    @classmethod
    def of(cls, histories: Sequence[AcceptanceHistory]) -> RowRates:
        """Returns each row's rates; where a row has judged little, they are nearly the rates of all rows."""
        fields = ("judged", "accepted", "first_judged", "first_accepted")
        faded = np.array([one.faded for one in histories])[:, None]
        judged, accepted, tried, hit = (
            faded * np.array([getattr(one, name) for one in histories]) for name in fields
        )
        judged, accepted = (of.reshape(-1, RANKS, BINS) for of in (judged, accepted))
        by_chance = _rate(accepted.sum(0), judged.sum(0), np.array(ASSUMED), WEIGHT)
        by_rank = _rate(accepted.sum((0, 2)), judged.sum((0, 2)), np.array(USUAL), WEIGHT)
        by_depth, above = np.empty(DEPTHS), USUAL[0]
        all_tried, all_hit = tried.sum(0), hit.sum(0)
        for depth in range(DEPTHS):  # a depth that nobody has reached is like the one above it
            by_depth[depth] = above = _rate(all_hit[depth], all_tried[depth], above, FIRST_WEIGHT)
        doubt = np.sqrt(by_depth * (1 - by_depth) / (all_tried + FIRST_WEIGHT))
        if len(histories) == 1:
            return cls(by_chance[None], by_rank[None], by_depth[None], doubt)
        return cls(
            _rate(accepted, judged, by_chance, WEIGHT),
            _rate(accepted.sum(2), judged.sum(2), by_rank, WEIGHT),
            _rate(hit, tried, by_depth, FIRST_WEIGHT),
            doubt,
        )

    def rows(self) -> list[AcceptanceRates]:
        """Returns the rates of every row, in plain numbers."""
        arrays = self.by_chance, self.by_rank, self.by_depth
        return [AcceptanceRates(*of) for of in zip(*(one.tolist() for one in arrays), strict=True)]

    def first(self, depth: int, *, optimism: float) -> Float[np.ndarray, "rows depth"]:
        """Returns the rates of first children down to `depth`, that of depth 1 raised by standard errors.

        `optimism` says by how many.
        """
        rates = self.by_depth[:, np.arange(depth).clip(max=DEPTHS - 1)]
        rates[:, :1] = np.minimum(rates[:, :1] + optimism * self.doubt[0], 1.0)
        return rates


def _rate(hits: Any, tried: Any, assumed: Any, weight: float) -> Any:
    """Returns the rates of hits, where an assumed rate counts for as many tries as `weight`."""
    return (hits + weight * assumed) / (tried + weight)
