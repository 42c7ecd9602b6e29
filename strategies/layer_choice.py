"""Choice, as machine code, of the children of a layer and of the leaves that get some, over all rows."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from draftwood.kernels.machine_code import compiled
from draftwood.strategies.acceptance_history import BOUNDS, RANKS

Floats = NDArray[np.float64]


@compiled
def choose_leaves(
    accepted: Float[np.ndarray, "rows leaves"],
    counts: Int[np.ndarray, " rows"],
    sizes: Int[np.ndarray, " rows"],
    first: Float[np.ndarray, "rows layers"],
    depths: Int[np.ndarray, " rows"],
    layer: int,
    passes: Float[np.ndarray, " sizes"],
    calls: Float[np.ndarray, " nodes"],
    least: Float[np.ndarray, " sizes"],
    price: float,
    thought: float,
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, int]:
    """Choose the leaves that get children, if chains below them pay for their time.

    Args:
        accepted: probabilities of acceptance of the leaves of each row, in their order; 0 of padding.
        counts: leaves of each row.
        sizes: nodes of every row so far.
        first: rates of first children in all layers.
        depths: layers of each row at most; the leaves of a row near its end get no children.
        layer: layers that were drawn.
        passes, calls, least: as `seconds` gives them.
        price: tokens that a second must bring.
        thought: by how much a first node is thought better than it was.

    Returns:
        Their places in ascending order, `[rows, width]`, how many each row has, and their probabilities of
        acceptance. The width is 0 where no chain pays. And children of one of them at most, as
        `PayingNodes.most_children`.
    """
    rows, left = len(counts), first.shape[1] - layer
    size, smallest, leaves = 0, sizes[0], 0
    for row in range(rows):
        size, smallest, leaves = max(size, sizes[row]), min(smallest, sizes[row]), max(leaves, counts[row])
    room = len(passes) - 1 - size
    most = min(leaves, room) if left > 0 else 0
    # The most likely leaves of each row, the first of equal ones first.
    best, order, numbers = np.zeros((rows, most)), np.zeros((rows, most), np.int64), np.zeros(rows, np.int64)
    for row in range(rows):
        for leaf in range(counts[row]):
            value = accepted[row, leaf] if layer < depths[row] else 0.0
            at = numbers[row]
            while at > 0 and best[row, at - 1] < value:
                at -= 1
                if at + 1 < most:
                    best[row, at + 1], order[row, at + 1] = best[row, at], order[row, at]
            if at < most:
                best[row, at], order[row, at] = value, leaf
                numbers[row] = min(numbers[row] + 1, most)
    width = best_width(best, first, layer, passes, calls, size, price)
    places, opened = np.zeros((rows, width), np.int64), np.zeros((rows, width))
    for row in range(rows):
        numbers[row] = min(numbers[row], width)
        for rank in range(numbers[row]):
            at = rank
            while at > 0 and places[row, at - 1] > order[row, rank]:
                places[row, at], opened[row, at] = places[row, at - 1], opened[row, at - 1]
                at -= 1
            places[row, at], opened[row, at] = order[row, rank], best[row, rank]
    paying = room
    if price * least[size] > 0:
        paying = min(room, int(thought * rows / (price * least[size])))
    return places, numbers, opened, min(len(passes) - 1 - smallest, size - smallest + 1 + paying)


@compiled
def best_width(
    accepted: Floats, first: Floats, layer: int, passes: Floats, calls: Floats, size: int, price: float
) -> int:
    """Returns how many leaves of a row are opened, if chains below them pay most so; 0 where none pays.

    Args:
        accepted: probabilities of acceptance of the leaves of each row, the largest first, `[rows, leaves]`.
        first, layer, passes, calls, size, price: as in `choose_leaves`.
    """
    rows, left = len(first), first.shape[1] - layer
    of_width, widest, most = np.zeros(rows), 0, 0.0
    for width in range(1, accepted.shape[1] + 1):
        for row in range(rows):
            of_width[row] += accepted[row, width - 1]
        reached, tokens = of_width.copy(), 0.0
        for length in range(1, left + 1):
            larger = size + width * length
            if larger >= len(passes):
                break
            for row in range(rows):
                reached[row] *= first[row, layer + length - 1]
                tokens += reached[row]
            gain = tokens - price * (passes[larger] - passes[size] + length * calls[width - 1])
            if gain > most:
                widest, most = width, gain
    return widest


@compiled
def choose_children(
    chances: Float[np.ndarray, "rows nodes ahead"],
    judged: Float[np.ndarray, "rows nodes"],
    sizes: Int[np.ndarray, " rows"],
    by_chance: Float[np.ndarray, "rows ranks bins"],
    by_rank: Float[np.ndarray, "rows ranks"],
    first: Float[np.ndarray, "rows layers"],
    layer: int,
    passes: Float[np.ndarray, " sizes"],
    slopes: Float[np.ndarray, " sizes"],
    call: float,
    price: float,
    thought: float,
    known: bool,
) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats, Floats]:
    """Choose how many children of every node are kept, of those that were drawn.

    A child counts by its value, which is the estimated probability that it is accepted. For a sampled child
    that is the usual one of its rank, until it is kept: nothing is decided on it by its own token.

    Args:
        chances: the draft's probability of every child in drawn order; 0 where there is none.
        judged: the estimated probability that the verifier accepts a node; 0 of padding.
        sizes: nodes of every row before this layer.
        by_chance, by_rank, first: as in `RowRates`.
        layer: number of this layer.
        passes, slopes: as `seconds` gives them.
        call: seconds of a layer of one node.
        price: tokens that a second must bring.
        thought: by how much a first node is thought better than it was.
        known: whether the children are the most likely tokens, so that no chance decides on them.

    Returns:
        Kept children by node, `[rows, nodes]`, and by row. For the kept ones of each row, by parent and rank:
        the estimated probability that they are accepted, and the draft's probability, given that the earlier
        siblings failed, `[rows, most]`.
    """
    rows, nodes, ahead = chances.shape
    judged, rank = judged.copy(), np.zeros((rows, nodes), np.int64)
    left, value = np.ones((rows, nodes)), np.zeros((rows, nodes))
    accepted, shares = np.zeros((rows, nodes, ahead)), np.zeros((rows, nodes, ahead))
    best, counts, offered = np.zeros(rows), np.zeros(rows, np.int64), 0
    for row in range(rows):
        offered += judged[row].max() > 0
        for node in range(nodes):
            chance = chances[row, node, 0]
            if chance > 0:
                rate = by_chance[row, 0, bin_of(chance)] if known else by_rank[row, 0]
                value[row, node] = judged[row, node] * rate
    paid, most = sizes.max(), len(passes) - 1
    least = least_values(
        value, judged, by_rank, first, sizes, most, layer, price * slopes[paid] / max(offered, 1)
    )
    # A layer that was asked for since its first node was thought better than it was, is tried as well.
    if paid > 0:
        thought = 1.0
    while True:
        values = 0.0
        for row in range(rows):
            at = value[row].argmax()
            while sizes[row] + counts[row] < paid and value[row, at] > 0 and value[row, at] >= least[row]:
                now, chance = rank[row, at], chances[row, at, rank[row, at]]
                share = chance / left[row, at] if chance < left[row, at] else 1.0
                found = judged[row, at] * by_chance[row, min(now, RANKS - 1), bin_of(share)]
                accepted[row, at, now], shares[row, at, now] = found, share
                best[row], counts[row] = max(best[row], found), counts[row] + 1
                left[row, at], judged[row, at] = max(left[row, at] - chance, 0.0), judged[row, at] - found
                rank[row, at], value[row, at] = now + 1, 0.0
                chance = chances[row, at, now + 1] if now + 1 < ahead else 0.0
                if chance > 0:
                    share = chance / left[row, at] if chance < left[row, at] else 1.0
                    place = min(now + 1, RANKS - 1)
                    rate = by_chance[row, place, bin_of(share)] if known else by_rank[row, place]
                    value[row, at] = judged[row, at] * rate
                at = value[row].argmax()
            values += value[row, at]
        # Sums of the same numbers may differ in their last bits.
        if paid == most or values < (1 - 1e-9) * least.sum():
            break
        if not more_pay(value, judged, rank, best, by_rank, first, layer, passes, call, paid, price, thought):
            break
        paid, thought = paid + 1, 1.0
    kept = np.zeros((2, rows, counts.max()))
    for row in range(rows):
        place = 0
        for node in range(nodes):
            for now in range(rank[row, node]):
                kept[0, row, place], kept[1, row, place] = accepted[row, node, now], shares[row, node, now]
                place += 1
    return rank, counts, kept[0].copy(), kept[1].copy()


@compiled
def bin_of(share: float) -> int:
    """Returns the bin of a probability, as `bisect(BOUNDS, share)` does."""
    place = 0
    for bound in BOUNDS:
        place += share >= bound
    return place


@compiled
def least_values(
    value: Floats,
    judged: Floats,
    by_rank: Floats,
    first: Floats,
    sizes: NDArray[np.int64],
    budget: int,
    layer: int,
    floor: float,
) -> Floats:
    """Returns the least values of the nodes that each row's budget may be expected to hold at the end.

    They are the best ones of this layer and below it, if all children are accepted at the usual rates. A
    node of this layer that is worth less would take the place of a better one further down. 0 where
    nodes of no more than `floor` do not pay before the budget is spent.

    Args:
        value, judged: of the next child of every node, its value and the probability that it comes to be
            judged, `[rows, nodes]`.
        by_rank, first, sizes, layer: as in `choose_children`.
        budget: nodes of a row at most.
        floor: the value at which a child pays.
    """
    nodes, depths, least = value.shape[1], first.shape[1], np.zeros(len(sizes))
    # Of every next child: its value, the probability that it is judged, its rank and its depth.
    open_ = np.empty((4, nodes + budget))
    for row in range(len(sizes)):
        open_[0, :nodes], open_[1, :nodes] = value[row], judged[row]
        open_[2, :nodes], open_[3, :nodes] = 0, layer
        count, room = nodes, budget - sizes[row]
        for taken in range(room):
            best = open_[0, :count].argmax()
            worth, rank, depth = open_[0, best], int(open_[2, best]), int(open_[3, best])
            if worth <= floor:
                break
            if taken == room - 1:
                least[row] = worth
                break
            open_[1, best] -= worth
            open_[2, best] = rank + 1
            open_[0, best] = open_[1, best] * by_rank[row, min(rank + 1, RANKS - 1)]
            if depth < depths:
                open_[0, count], open_[1, count] = worth * first[row, depth], worth
                open_[2, count], open_[3, count] = 0, depth + 1
                count += 1
    return least


@compiled
def more_pay(
    value: Floats,
    judged: Floats,
    rank: NDArray[np.int64],
    drawn: Floats,
    by_rank: Floats,
    first: Floats,
    layer: int,
    passes: Floats,
    call: float,
    size: int,
    price: float,
    thought: float,
) -> bool:
    """Returns whether further nodes in this layer pay, with chains below it, if nodes fare as expected.

    Args:
        value, judged, rank: of the next child of every node, its value, the probability that it comes to be
            judged, and its rank, `[rows, nodes]`.
        drawn: of the best node that a row has in this layer, its probability of acceptance, `[rows]`.
        by_rank, first, layer, passes, call, price, thought: as in `choose_children`.
        size: nodes of the largest tree so far.
    """
    rows, left = len(first), first.shape[1] - layer
    value, judged, rank = value.copy(), judged.copy(), rank.copy()
    now, then = drawn.copy(), drawn.copy()  # the best leaves without and with further nodes
    for row in range(rows):
        then[row] = max(then[row], thought * value[row].max())
    below, without = np.zeros(left + 1), np.zeros(left + 1)
    for length in range(left):
        below[length + 1], without[length + 1] = below[length] - price * call, without[length] - price * call
        for row in range(rows):
            now[row] *= first[row, layer + length]
            then[row] *= first[row, layer + length]
            without[length + 1] += now[row]
            below[length + 1] += then[row]
    least = 0.0
    for length in range(left + 1):
        if size + length < len(passes):
            least = max(least, without[length] - price * (passes[size + length] - passes[size]))
    tokens = 0.0
    for larger in range(size + 1, len(passes)):
        added = 0.0
        for row in range(rows):
            best = value[row].argmax()
            added += value[row, best]
            judged[row, best] -= value[row, best]
            rank[row, best] += 1
            value[row, best] = judged[row, best] * by_rank[row, min(rank[row, best], RANKS - 1)]
        if added <= 0:
            break
        tokens += thought * added if larger == size + 1 else added
        for length in range(left + 1):
            if larger + length < len(passes):
                spent = price * (passes[larger + length] - passes[size])
                if tokens + below[length] - spent > least:
                    return True
    return False
