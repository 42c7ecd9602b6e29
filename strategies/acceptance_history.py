"""Counts of a row's accepted children, and the rates that these give for the next ones."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import attrs
import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from draftwood import TokenTree
from draftwood.kernels.machine_code import compiled

Floats = NDArray[np.float64]

BOUNDS = (0.05, 0.15, 0.3, 0.5, 0.7, 0.9, 0.98)
"""Bounds between the bins of a child's probability, given that its earlier siblings failed."""

RANKS, BINS = 3, len(BOUNDS) + 1


@attrs.frozen
class AssumedRates:
    """Rates of acceptance that are assumed before any child was judged, for a first, second and later child.

    Attributes:
        by_chance: by rank and bin of the child's probability.
        by_rank: of a child whose probability is not known.
    """

    by_chance: tuple[tuple[float, ...], ...]
    by_rank: tuple[float, float, float]

    @cached_property
    def arrays(self) -> tuple[Float[np.ndarray, " kinds"], Float[np.ndarray, " ranks"]]:
        """Returns both as arrays, of which the first has a number for each rank and bin."""
        return np.array(self.by_chance).reshape(-1), np.array(self.by_rank)


LIKELIEST = AssumedRates(
    (
        (0.3, 0.3, 0.45, 0.65, 0.85, 0.95, 0.98, 0.99),
        (0.05, 0.25, 0.5, 0.7, 0.75, 0.8, 0.85, 0.9),
        (0.05, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    ),
    (0.7, 0.4, 0.3),
)
"""Rates of the likeliest tokens, at temperature 0."""

DRAWN = AssumedRates(
    (
        (0.55, 0.5, 0.45, 0.5, 0.5, 0.7, 0.9, 0.98),
        (0.25, 0.2, 0.15, 0.15, 0.15, 0.2, 0.4, 0.7),
        (0.15, 0.1, 0.1, 0.1, 0.1, 0.15, 0.3, 0.5),
    ),
    (0.6, 0.25, 0.12),
)
"""Rates of drawn tokens: the target often finds an unlikely one more likely than the draft does."""

WEIGHT, ROW_WEIGHT = 2.0, 8.0
"""Judged children that such an assumption counts for, and that the rate of all rows counts for in one's."""

DEPTHS = 8
"""Depths whose first children are counted apart; deeper ones count with the last."""

FIRST_WEIGHT, FIRST_ROW_WEIGHT = 4.0, 12.0
"""Judged first children of a depth that these count for."""

LEAST_FADED = 1e-6
"""Worth of counts below which they are written anew."""

KINDS = RANKS * BINS


class Judged(NamedTuple):
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


def judged_children(tree: TokenTree, path: Sequence[int], chances: Sequence[float]) -> list[Judged]:
    """Returns the children that a verifier judged on its way along an accepted path.

    Args:
        tree: that it judged.
        path: its accepted nodes, from the root on.
        chances: the draft's probability of every node but the root, given that its earlier siblings failed.
    """
    if not chances:
        return []
    accepted, found = set(path), list[Judged]()
    for depth, node in enumerate(path, start=1):
        for rank, child in enumerate(tree.children(node)):
            found.append(Judged(depth, rank, chances[child - 1], child in accepted))
            if child in accepted:
                break
    return found


@attrs.frozen
class JudgedCounts:
    """Counts of judged children, of which `AcceptanceHistory.faded` says what they are worth.

    Attributes:
        flat: children by rank and bin of their probability, then the accepted ones among them; first children
            by depth, then the accepted ones among them. `2 * RANKS * BINS + 2 * DEPTHS` numbers.
    """

    flat: tuple[float, ...] = (0.0,) * (2 * KINDS + 2 * DEPTHS)

    @cached_property
    def array(self) -> Float[np.ndarray, " counts"]:
        """Returns `flat` as an array."""
        return np.array(self.flat)

    def after(self, children: Iterable[Judged], *, worth: float) -> JudgedCounts:
        """Returns the counts with these children, each of which counts as `worth`."""
        counts = list(self.flat)
        for child in children:
            kind = min(child.rank, RANKS - 1) * BINS + bisect(BOUNDS, child.chance)
            counts[kind] += worth
            counts[KINDS + kind] += child.accepted * worth
            if child.rank == 0:
                first = 2 * KINDS + min(child.depth, DEPTHS) - 1
                counts[first] += worth
                counts[DEPTHS + first] += child.accepted * worth
        return JudgedCounts(tuple(counts))

    def times(self, worth: float) -> JudgedCounts:
        """Returns the counts, each `worth` times as much."""
        return JudgedCounts(tuple([worth * count for count in self.flat]))


NOTHING_JUDGED = JudgedCounts()


@attrs.frozen
class AcceptanceHistory:
    """Fading counts over the rounds of a row.

    Attributes:
        counts: of judged children.
        tokens: emitted.
        time: of the rounds, in rounds of ordinary decoding of the same rows.
        faded: what one of `counts` is worth: older rounds count less, and only the new ones are written.
        undrafted: rounds in which the draft was not asked, since it was last.
    """

    # The other numbers nearly always differ too, and a hash of all counts takes its time in every round.
    counts: JudgedCounts = attrs.field(default=NOTHING_JUDGED, hash=False)
    tokens: float = 0.0
    time: float = 0.0
    faded: float = 1.0
    undrafted: int = 0

    def after(
        self, children: Sequence[Judged], *, tokens: int, time: float, memory: float, drafted: bool = True
    ) -> AcceptanceHistory:
        """Returns the history after one more round; earlier rounds count `memory` times as much.

        Args:
            children: that were judged.
            tokens: emitted.
            time: of the round, in rounds of ordinary decoding.
            memory: as above.
            drafted: whether the draft was asked.
        """
        tokens_now, time_now = memory * self.tokens + tokens, memory * self.time + time
        faded, undrafted = memory * self.faded, 0 if drafted else self.undrafted + 1
        counts = self.counts
        if faded < LEAST_FADED:
            counts, faded = counts.times(faded), 1.0
        if children:
            counts = counts.after(children, worth=1 / faded)
        return AcceptanceHistory(counts, tokens_now, time_now, faded, undrafted)


@attrs.frozen
class AcceptanceRates:
    """Estimated rates at which a row's next children are accepted, once their parent is.

    Attributes:
        by_chance: by rank and bin of the probability.
        by_rank: by rank, of a child whose token is not known yet.
        by_depth: by depth, of a first child whose probability is not known yet.
        most: the largest of these.
    """

    by_chance: Sequence[Sequence[float]]
    by_rank: Sequence[float]
    by_depth: Sequence[float]
    most: float

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
    def of(cls, histories: Sequence[AcceptanceHistory], assumed: AssumedRates) -> RowRates:
        """Returns each row's rates; where a row has judged little, they are nearly the rates of all rows."""
        counts = np.stack([one.counts.array for one in histories])
        faded = np.array([one.faded for one in histories])
        return cls(*_rates_of(counts, faded, *assumed.arrays))

    def rows(self) -> list[AcceptanceRates]:
        """Returns the rates of every row, in plain numbers."""
        arrays = self.by_chance, self.by_rank, self.by_depth, self.by_depth.max(1)
        return [AcceptanceRates(*of) for of in zip(*(one.tolist() for one in arrays), strict=True)]

    def first(self, depth: int, *, optimism: float) -> Float[np.ndarray, "rows depth"]:
        """Returns the rates of first children down to `depth`, that of depth 1 raised by standard errors.

        `optimism` says by how many.
        """
        deeper = [self.by_depth[:, -1:]] * max(depth - DEPTHS, 0)
        rates = np.ascontiguousarray(np.concatenate([self.by_depth[:, :depth], *deeper], axis=1))
        rates[:, :1] = np.minimum(rates[:, :1] + optimism * self.doubt[0], 1.0)
        return rates


@compiled
def _rates_of(
    counts: Floats, faded: Floats, assumed_by_chance: Floats, assumed_by_rank: Floats
) -> tuple[Floats, Floats, Floats, Floats]:
    """Returns the arrays of `RowRates`: of all rows together first, then of each row.

    Args:
        counts: `JudgedCounts.flat` of the rows, `[rows, counts]`.
        faded: what each row's still count.
        assumed_by_chance, assumed_by_rank: as `AssumedRates.arrays`.
    """
    rows = len(counts)
    by_chance, by_rank = np.empty((rows, RANKS, BINS)), np.empty((rows, RANKS))
    by_depth, doubt = np.empty((rows, DEPTHS)), np.empty(DEPTHS)
    of_rows = counts * faded.reshape(-1, 1)
    together = of_rows.sum(0)
    own = rows > 1  # a row by itself is all rows
    for rank in range(RANKS):
        judged, accepted = np.zeros(rows), np.zeros(rows)
        for place in range(rank * BINS, (rank + 1) * BINS):
            rate = (together[KINDS + place] + WEIGHT * assumed_by_chance[place]) / (together[place] + WEIGHT)
            for row in range(rows):
                tried, hits = of_rows[row, place], of_rows[row, KINDS + place]
                judged[row] += tried
                accepted[row] += hits
                by_chance[row, rank, place - rank * BINS] = (
                    (hits + ROW_WEIGHT * rate) / (tried + ROW_WEIGHT) if own else rate
                )
        rate = (accepted.sum() + WEIGHT * assumed_by_rank[rank]) / (judged.sum() + WEIGHT)
        for row in range(rows):
            by_rank[row, rank] = (
                (accepted[row] + ROW_WEIGHT * rate) / (judged[row] + ROW_WEIGHT) if own else rate
            )
    rate = assumed_by_rank[0]
    for depth in range(DEPTHS):
        place = 2 * KINDS + depth
        # A depth that nobody has reached is thought to be like the one above.
        tried = together[place] + FIRST_WEIGHT
        rate = (together[place + DEPTHS] + FIRST_WEIGHT * rate) / tried
        doubt[depth] = np.sqrt(rate * (1 - rate) / tried)
        for row in range(rows):
            tries, hits = of_rows[row, place], of_rows[row, place + DEPTHS]
            by_depth[row, depth] = (
                (hits + FIRST_ROW_WEIGHT * rate) / (tries + FIRST_ROW_WEIGHT) if own else rate
            )
    return by_chance, by_rank, by_depth, doubt
