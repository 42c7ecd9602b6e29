"""Counts of a row's accepted children, and the rates that these give for the next ones."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import attrs
import numpy as np
from jaxtyping import Float, Int
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

FIRST_WEIGHT, FIRST_ROW_WEIGHT = 6.0, 12.0
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


NOTHING_JUDGED = bytes(8 * (2 * KINDS + 2 * DEPTHS))


def counted(counts: bytes, children: Iterable[Judged], *, worth: float) -> bytes:
    """Returns `AcceptanceHistory.counts` with these children, each of which counts as `worth`."""
    after = memoryview(bytearray(counts)).cast("d")  # an array takes three times as long for single numbers
    for child in children:
        kind = min(child.rank, RANKS - 1) * BINS + bisect(BOUNDS, child.chance)
        after[kind] += worth
        if child.accepted:
            after[KINDS + kind] += worth
        if child.rank == 0:
            first = 2 * KINDS + min(child.depth, DEPTHS) - 1
            after[first] += worth
            if child.accepted:
                after[DEPTHS + first] += worth
    return after.tobytes()


@attrs.frozen
class AcceptanceHistory:
    """Fading counts over the rounds of a row.

    Attributes:
        counts: of judged children, `2 * RANKS * BINS + 2 * DEPTHS` float64 numbers: by rank and bin of the
            probability, then the accepted ones among them; first children by depth, then the accepted ones
            among them. Bytes are a value, and many rows of them are one array at once.
        tokens: emitted.
        time: of the rounds, in rounds of ordinary decoding of the same rows.
        faded: what one of `counts` is worth: older rounds count less, and only the new ones are written.
        undrafted: rounds in which the draft was not asked, since it was last.
    """

    # The other numbers nearly always differ too, and a hash of all counts takes its time in every round.
    counts: bytes = attrs.field(default=NOTHING_JUDGED, hash=False, repr=False)
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
            counts, faded = (faded * np.frombuffer(counts)).tobytes(), 1.0
        if children:
            counts = counted(counts, children, worth=1 / faded)
        return AcceptanceHistory(counts, tokens_now, time_now, faded, undrafted)


@attrs.frozen(eq=False)
class RowRates:
    """Estimated rates at which the next children of several rows are accepted, once their parent is.

    Attributes:
        by_chance: by rank and bin of the probability, `[rows, ranks, bins]`.
        by_rank: by rank, of a child whose token is not known yet, `[rows, ranks]`.
        first: by depth, of a first child whose probability is not known yet, `[rows, depths]`; of depth 1 it
            is raised by standard errors of what all rows together say of it.
        thought: by how much this raises the rates of depth 1 together.
    """

    by_chance: Float[np.ndarray, "rows ranks bins"]
    by_rank: Float[np.ndarray, "rows ranks"]
    first: Float[np.ndarray, "rows depths"]
    thought: float

    @classmethod
    def of(
        cls,
        histories: Sequence[AcceptanceHistory],
        assumed: AssumedRates,
        *,
        depths: Int[np.ndarray, " rows"],
        optimism: float,
    ) -> RowRates:
        """Returns each row's rates down to its own of `depths`, below which they are 0.

        `optimism` says by how many errors `first` is raised. A row that has judged little has nearly the
        rates that all rows have.
        """
        counts = np.frombuffer(b"".join([one.counts for one in histories]))
        faded = np.array([one.faded for one in histories])
        arrays = counts.reshape(len(histories), -1), faded, *assumed.arrays
        return cls(*_rates_of(*arrays, depths, optimism))


@compiled
def _rates_of(
    counts: Floats,
    faded: Floats,
    assumed_by_chance: Floats,
    assumed_by_rank: Floats,
    depths: NDArray[np.int64],
    optimism: float,
) -> tuple[Floats, Floats, Floats, float]:
    """Returns what `RowRates` holds: of all rows together first, then of each row.

    Args:
        counts: `AcceptanceHistory.counts` of the rows, `[rows, counts]`.
        faded: what each row's still count.
        assumed_by_chance, assumed_by_rank: as `AssumedRates.arrays`.
        depths: of each row, down to which it has rates; depths that are not counted apart have the rate of
            the last that is.
        optimism: standard errors by which the rates of depth 1 are raised in `first`.
    """
    rows, deepest = len(counts), 0
    for row in range(rows):
        deepest = max(deepest, depths[row])
    # Plain loops: the code of sums over arrays is long, and no cache has it after a pass.
    own = rows > 1  # a row by itself is all rows
    by_chance, by_rank = np.empty((rows, RANKS, BINS)), np.empty((rows, RANKS))
    first = np.zeros((rows, deepest))
    for rank in range(RANKS):
        tries, hits = 0.0, 0.0
        for bin_ in range(BINS):
            place, tried, accepted = rank * BINS + bin_, 0.0, 0.0
            for row in range(rows):
                tried += counts[row, place] * faded[row]
                accepted += counts[row, KINDS + place] * faded[row]
            tries, hits = tries + tried, hits + accepted
            rate = (accepted + WEIGHT * assumed_by_chance[place]) / (tried + WEIGHT)
            for row in range(rows):
                found = rate
                if own:
                    tried, accepted = counts[row, place] * faded[row], counts[row, KINDS + place] * faded[row]
                    found = (accepted + ROW_WEIGHT * rate) / (tried + ROW_WEIGHT)
                by_chance[row, rank, bin_] = found
        rate = (hits + WEIGHT * assumed_by_rank[rank]) / (tries + WEIGHT)
        for row in range(rows):
            found = rate
            if own:
                tries, hits = 0.0, 0.0
                for place in range(rank * BINS, (rank + 1) * BINS):
                    tries += counts[row, place] * faded[row]
                    hits += counts[row, KINDS + place] * faded[row]
                found = (hits + ROW_WEIGHT * rate) / (tries + ROW_WEIGHT)
            by_rank[row, rank] = found
    rate, before, after = assumed_by_rank[0], 0.0, 0.0
    for depth in range(deepest):
        place, tried, accepted = 2 * KINDS + min(depth, DEPTHS - 1), FIRST_WEIGHT, 0.0
        for row in range(rows):
            tried += counts[row, place] * faded[row]
            accepted += counts[row, DEPTHS + place] * faded[row]
        # A depth that nobody has reached is thought to be like the one above.
        if depth < DEPTHS:
            rate = (accepted + FIRST_WEIGHT * rate) / tried
        more = 0.0 if depth else optimism * np.sqrt(rate * (1 - rate) / tried)
        for row in range(rows):
            if depth < depths[row]:
                found = rate
                if own:
                    tries, hits = counts[row, place] * faded[row], counts[row, DEPTHS + place] * faded[row]
                    found = (hits + FIRST_ROW_WEIGHT * rate) / (tries + FIRST_ROW_WEIGHT)
                first[row, depth] = min(found + more, 1.0)
                if depth == 0:
                    before, after = before + found, after + first[row, 0]
    return by_chance, by_rank, first, after / before if deepest else 1.0
