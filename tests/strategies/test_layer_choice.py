"""Machine code that chooses layers: each function against a short search of the same choice."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from draftwood.strategies.layer_choice import best_width, least_values, more_pay

RATES = st.floats(0.01, 0.99)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), rows=st.integers(1, 3), leaves=st.integers(1, 4), floor=st.floats(0.0, 0.4))
def test_a_budget_is_kept_for_the_best_nodes_of_this_layer_and_below(data, rows, leaves, floor) -> None:
    depth, budget, layer = 4, data.draw(st.integers(1, 12)), data.draw(st.integers(1, 4))
    judged, value, by_rank, by_depth = (
        np.array([data.draw(st.lists(RATES, min_size=n, max_size=n)) for _ in range(rows)])
        for n in (leaves, leaves, 3, depth)
    )
    value *= judged
    sizes = np.array(data.draw(st.lists(st.integers(0, budget), min_size=rows, max_size=rows)))
    found = least_values(value, judged, by_rank, by_depth, sizes, budget, layer, floor)
    for row in range(rows):
        best = [(-value[row, node], judged[row, node], 0, layer) for node in range(leaves)]
        least, room = 0.0, budget - sizes[row]
        for taken in range(room):
            heapq.heapify(best)
            if -best[0][0] <= floor:
                break
            worth, left, rank, at = heapq.heappop(best)
            if taken == room - 1:
                least = -worth
            below = (left + worth) * by_rank[row, min(rank + 1, 2)]
            best.append((-below, left + worth, rank + 1, at))
            if at < depth:
                best.append((worth * by_depth[row, at], -worth, 0, at + 1))
        assert found[row] == pytest.approx(least, abs=1e-12)


@settings(max_examples=200, deadline=None)
@given(data=st.data(), rows=st.integers(1, 3), leaves=st.integers(1, 3), price=st.floats(0.1, 3.0))
def test_further_nodes_are_drawn_where_some_number_of_them_pays(data, rows, leaves, price) -> None:
    # The first nodes cost most, so several may pay where one does not.
    steps = sorted(data.draw(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=8)), reverse=True)
    passes = 1 + np.cumsum([0.0, *steps])
    judged = np.array(data.draw(st.lists(RATES, min_size=rows * leaves, max_size=rows * leaves)))
    judged = judged.reshape(rows, leaves)
    unknown = np.array([data.draw(st.tuples(RATES, RATES, RATES)) for _ in range(rows)])
    value, rank = judged * unknown[:, :1], np.zeros((rows, leaves), np.int64)
    # What each row's next nodes are expected to bring, one after another.
    expected = np.zeros(len(passes))
    for row in range(rows):
        left, ranks = judged[row].copy(), [0] * leaves
        for larger in range(1, len(passes)):
            values = [left[leaf] * unknown[row, min(ranks[leaf], 2)] for leaf in range(leaves)]
            best = int(np.argmax(values))
            expected[larger] += values[best]
            left[best], ranks[best] = left[best] - values[best], ranks[best] + 1
    gains = expected.cumsum() - price * (passes - passes[0])
    first = np.full((rows, 4), 0.5)
    found = more_pay(value, judged, rank, np.zeros(rows), unknown, first, 4, passes, 0.1, 0, price, 1.0)
    assert found == (gains.max() > 0) or abs(np.sort(gains)[-1]) < 1e-9


@settings(max_examples=200, deadline=None)
@given(data=st.data(), rows=st.integers(1, 3), leaves=st.integers(1, 3), price=st.floats(0.1, 3.0))
def test_as_many_leaves_are_opened_as_bring_most(data, rows, leaves, price) -> None:
    steps = data.draw(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=8))
    passes, calls = 1 + np.cumsum([0.0, *steps]), 0.1 + 0.05 * np.arange(8.0)
    accepted = -np.sort(
        -np.array([data.draw(st.lists(RATES, min_size=leaves, max_size=leaves)) for _ in range(rows)])
    )
    first = np.array([data.draw(st.lists(RATES, min_size=4, max_size=4)) for _ in range(rows)])
    layer = data.draw(st.integers(0, 3))
    gains = {0: 0.0}
    for width in range(1, leaves + 1):
        for length in range(1, 5 - layer):
            if width * length < len(passes):
                chains = first[:, layer : layer + length].cumprod(1).sum(1)
                time = passes[width * length] - passes[0] + length * calls[width - 1]
                gain = accepted[:, :width].sum(1) @ chains - price * time
                gains[width] = max(gains.get(width, -math.inf), gain)
    found = best_width(accepted, first, layer, passes, calls, 0, price)
    assert gains[found] == pytest.approx(max(gains.values()), abs=1e-9)
