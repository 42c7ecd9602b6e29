"""Rates of acceptance: what all rows have counted first, then each row's own counts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from draftwood.strategies.acceptance_history import (
    BINS,
    BOUNDS,
    DEPTHS,
    FIRST_ROW_WEIGHT,
    FIRST_WEIGHT,
    LIKELIEST,
    RANKS,
    ROW_WEIGHT,
    WEIGHT,
    AcceptanceHistory,
    Judged,
    RowRates,
)

CHANCE = st.floats(0, 1)
ROUND = st.lists(st.builds(Judged, st.integers(1, 10), st.integers(0, 4), CHANCE, st.booleans()), max_size=3)
MEMORY = 0.9


def blended(hits, tries, rate, weight):
    return (hits + weight * rate) / (tries + weight)


def counted(rows, kind):
    """By row, how much the children of `kind` count that were judged, and that were accepted."""
    tries, hits = np.zeros(len(rows)), np.zeros(len(rows))
    for row, rounds in enumerate(rows):
        for age, children in enumerate(reversed(rounds)):
            for child in filter(kind, children):
                tries[row] += MEMORY**age
                hits[row] += MEMORY**age * child.accepted
    return tries, hits


def rates(rows, kind, assumed, *, weight, row_weight):
    tries, hits = counted(rows, kind)
    together = blended(hits.sum(), tries.sum(), assumed, weight)
    return blended(hits, tries, together, row_weight if len(rows) > 1 else 1e300), together


@given(st.lists(st.lists(ROUND, max_size=4), min_size=1, max_size=3), st.data())
def test_rates_weigh_all_rows_and_then_each(rows, data):
    depths = np.array(data.draw(st.lists(st.integers(0, 10), min_size=len(rows), max_size=len(rows))))
    histories = []
    for rounds in rows:
        history = AcceptanceHistory()
        for children in rounds:
            history = history.after(children, tokens=1, time=1.0, memory=MEMORY)
        histories.append(history)
    found = RowRates.of(histories, LIKELIEST, depths=depths, optimism=0.0)
    weights = {"weight": WEIGHT, "row_weight": ROW_WEIGHT}
    for rank in range(RANKS):
        of_rank = [rank] if rank < RANKS - 1 else [rank, 3, 4]
        for place in range(BINS):
            wanted, _ = rates(
                rows,
                lambda child, of=of_rank, at=place: (
                    child.rank in of and int(np.searchsorted(BOUNDS, child.chance, side="right")) == at
                ),
                LIKELIEST.by_chance[rank][place],
                **weights,
            )
            assert found.by_chance[:, rank, place] == pytest.approx(wanted)
        wanted, _ = rates(
            rows, lambda child, of=of_rank: child.rank in of, LIKELIEST.by_rank[rank], **weights
        )
        assert found.by_rank[:, rank] == pytest.approx(wanted)
    together = LIKELIEST.by_rank[0]
    for depth in range(min(depths.max(), DEPTHS)):
        at_least = depth == DEPTHS - 1
        wanted, together = rates(
            rows,
            lambda child, at=depth + 1, deeper=at_least: (
                child.rank == 0 and (child.depth >= at if deeper else child.depth == at)
            ),
            together,
            weight=FIRST_WEIGHT,
            row_weight=FIRST_ROW_WEIGHT,
        )
        assert found.first[:, depth] == pytest.approx(np.where(depth < depths, wanted, 0.0))
    for depth in range(DEPTHS, depths.max()):
        assert found.first[:, depth] == pytest.approx(
            np.where(depth < depths, found.first[:, DEPTHS - 1], 0.0)
        )
    assert found.thought == 1
