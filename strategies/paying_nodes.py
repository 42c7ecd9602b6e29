"""Choice of the nodes that are worth their time, over all rows and layer by layer."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from draftwood import PassCosts, Siblings
from draftwood.kernels.machine_code import compiled
from draftwood.protocols.pass_costs import CONTEXT
from draftwood.strategies.acceptance_history import AcceptanceHistory, AcceptanceRates, AssumedRates, RowRates
from draftwood.strategies.layer_slots import LayerSlots

Floats = NDArray[np.float64]

OPTIMISM = 0.75
"""Standard errors by which a first node is thought better than it was, so that it is tried again."""

ROUNDS = 3.0
"""Rounds that the assumed speed counts for, before any was reached."""


class PayingNodes:
    """The trees of one round of all rows, which grow while that pays.

    The best long-run rate of tokens a second is the price of a second (Dinkelbach's method for a ratio): a
    node pays if the tokens that it adds in expectation exceed the price of the time that it adds. The rate
    that was reached so far is at most the best one, so it never asks too much of a node.

    A pass is padded to its largest tree, so one more node in every row costs the same as one more in
    the largest. Nodes are added to all rows at once while their values together pay for that.

    Nothing that was drawn is dropped, and all that decides on a node is known before its token.

    Attributes:
        depth: layers at most.
        rows: of the round.
        price: tokens that a second must bring.
        time: of the round so far, in rounds of ordinary decoding.
    """

    def __init__(
        self,
        histories: Sequence[AcceptanceHistory],
        costs: PassCosts,
        assumed: AssumedRates,
        *,
        budget: int,
        depth: int,
        context: float = 0,
    ) -> None:
        """No nodes yet.

        Args:
            histories: of the rows.
            costs: of passes.
            assumed: rates of acceptance before anything was judged.
            budget: nodes of a row at most, without the root.
            depth: layers at most.
            context: mean tokens of a row.
        """
        context = CONTEXT * round(context / CONTEXT)
        self._rates, self.depth = RowRates.of(histories, assumed), depth
        times = costs, budget, len(histories), context
        self._passes, self._calls, slopes, least, rates = seconds(*times, assumed.by_rank[0])
        self._assumed = float(rates[:depth].max(initial=1.0))  # tokens a round of ordinary decoding
        self._first = self._rates.first(depth, optimism=OPTIMISM)
        self._thought = float(self._first[:, 0].sum() / self._rates.by_depth[:, 0].sum()) if depth else 1.0
        self.rows, self.price = len(histories), self._reached_rate(histories)
        self._prices, self._least_prices = self.price * slopes, self.price * least
        self._sizes = [0] * len(histories)
        self._leaves = [[1.0] for _ in histories]  # their probabilities of acceptance, the largest first
        self._offered: dict[int, LayerSlots] = {}
        self._layer, self._drafting, self.time = 0, 0.0, 1.0
        self._paying = 0  # nodes that may be added to every row in the next layer
        self._width = self._paying_width()

    @cached_property
    def rates(self) -> list[AcceptanceRates]:
        """Returns the rates of acceptance, one per row."""
        return self._rates.rows()

    def width(self, layer: int) -> int:
        """Returns how many leaves of a row may get children in the layer after `layer`; 0 ends all trees.

        All rows must have offered the slots of `layer` before.
        """
        if layer > self._layer:
            opened = max(min(len(leaves), self._width) for leaves in self._leaves)
            self._drafting += float(self._calls[opened - 1])
            self._layer = layer
            self._draw()
            self.time = float((self._passes[max(self._sizes)] + self._drafting) / self._passes[0])
            self._width = self._paying_width()
        return self._width

    def most_children(self, row: int) -> int:
        """Returns how many children a node of a row may get in the next layer.

        The values of a layer are about 1 together, and the largest come first. So the n-th node that is
        added to all rows brings about 1/n a row, besides those that a smaller tree gets up to the largest.
        """
        size, largest = self._sizes[row], max(self._sizes)
        return min(len(self._passes) - 1 - size, largest - size + 1 + self._paying)

    def offer(self, row: int, opened: Sequence[Siblings], accepted: Sequence[float]) -> LayerSlots:
        """Offer the slots of a row's next layer; they are drawn from when `width` of that layer is asked.

        Args:
            row: of the nodes.
            opened: the siblings below every node.
            accepted: the estimated probability that the verifier accepts it.
        """
        rates = self.rates[row]
        self._offered[row] = slots = LayerSlots(opened, accepted, rates)
        return slots

    def _reached_rate(self, histories: Sequence[AcceptanceHistory]) -> float:
        """Returns the tokens a second that were reached, and at least the rate of ordinary decoding."""
        emitted = sum(of.tokens for of in histories) + ROUNDS * self._assumed
        reached = emitted / (sum(of.time for of in histories) + ROUNDS)
        return max(reached, 1.0) * len(histories) / float(self._passes[0])

    def _draw(self) -> None:
        offered, self._offered = self._offered, {}
        paid, most = max(self._sizes), len(self._passes) - 1
        least = {
            row: self._least_of_budget(row, slots, floor=self._prices[paid] / len(offered))
            for row, slots in offered.items()
        }
        # A layer that was asked for since its first node was thought better than it was, is tried as well.
        thought = 1.0 if paid else self._thought
        while True:
            for row, slots in offered.items():
                while self._sizes[row] < paid and slots.value >= least[row] and slots.draw():
                    self._sizes[row] += 1
            values = sum(slots.value for slots in offered.values())
            if paid == most or values < sum(least.values()) or not self._more_pay(offered, paid, thought):
                break
            paid, thought = paid + 1, 1.0
        self._leaves = [[] for _ in self._sizes]
        for row, slots in offered.items():
            self._leaves[row] = sorted((node.accepted for node in slots.drawn), reverse=True)

    def _more_pay(self, offered: Mapping[int, LayerSlots], paid: int, thought: float) -> bool:
        """Returns whether further nodes in every row are expected to pay.

        `paid` is the size of the largest tree so far, and `thought` raises the value of a first node.
        """
        width = max(len(slots.values) for slots in offered.values())
        of_slots, drawn = np.zeros((3, self.rows, width)), np.zeros(self.rows)
        for row, slots in offered.items():
            drawn[row] = slots.best_drawn
            of_slots[:, row, : len(slots.values)] = slots.values, slots.judged, slots.ranks
        # Whole arrays: machine code is made once for those, and once more for pieces of others.
        found: bool = more_pay(
            of_slots,
            drawn,
            self._rates.by_rank,
            self._first,
            self._layer,
            self._passes,
            float(self._calls[0]),
            paid,
            self.price,
            thought,
        )
        return found

    def _least_of_budget(self, row: int, offered: LayerSlots, *, floor: float) -> float:
        """Returns the least value of the nodes that a row's budget may be expected to hold at the end.

        They are the best ones of this layer and below it, if all children are accepted at the usual rates. A
        node of this layer that is worth less would take the place of a better one further down. 0 where
        nodes of no more than `floor` do not pay before the budget is spent.
        """
        room = len(self._passes) - 1 - self._sizes[row]
        if self._most_value(row, offered, floor=floor) <= room * floor:
            return 0.0
        rates = self.rates[row]
        # Of a slot: minus its value, the probability that it is judged, its rank and its depth.
        slots = [
            (-value, judged, 0, self._layer)
            for value, judged in zip(offered.values, offered.judged, strict=True)
        ]
        heapq.heapify(slots)
        for taken in range(room):
            if not slots or -slots[0][0] <= floor:
                return 0.0
            value, judged, rank, depth = heapq.heappop(slots)
            if taken == room - 1:
                return -value
            judged += value
            heapq.heappush(slots, (-judged * rates.unknown(rank + 1), judged, rank + 1, depth))
            if depth < self.depth:
                heapq.heappush(slots, (value * rates.first(depth + 1), -value, 0, depth + 1))
        return 0.0

    def _most_value(self, row: int, offered: LayerSlots, *, floor: float) -> float:
        """Returns at most what a row's coming nodes are worth together, of those worth more than `floor`."""
        depths, rates = self.depth + 1 - self._layer, self.rates[row]
        here = sum(offered.judged)
        if floor <= 0:
            return here * depths
        # What a depth is worth of the one above: no more siblings than these can be worth `floor` each.
        first, second, later = rates.by_rank
        missed = min(1 - first, 1 - rates.most) * (1 - second) * (1 - later) ** max(1 / floor - 2, 0)
        if missed < 1e-9:
            return here * depths
        return here * (1 - (1 - missed) ** depths) / missed  # type: ignore[no-any-return]

    def _paying_width(self) -> int:
        """Returns how many leaves of a row are opened next, if chains below them pay for their time."""
        size, left = max(self._sizes), self.depth - self._layer
        room = len(self._passes) - 1 - size
        most = min(max(map(len, self._leaves)), room)
        if most < 1 or left < 1:
            return 0
        accepted = np.array([(leaves + [0.0] * most)[:most] for leaves in self._leaves])
        width: int = best_width(
            accepted, self._first, self._layer, self._passes, self._calls, size, self.price
        )
        if not width:
            return 0
        least = float(self._least_prices[size])
        self._paying = room if least <= 0 else min(room, int(self._thought * self.rows / least))
        return width


@compiled
def best_width(
    accepted: Floats, first: Floats, layer: int, passes: Floats, calls: Floats, size: int, price: float
) -> int:
    """Returns how many leaves of a row are opened, if chains below them pay most so; 0 where none pays.

    Args:
        accepted: probabilities of acceptance of the leaves of each row, the largest first, `[rows, leaves]`.
        first: rates of first children in all layers, `[rows, layers]`.
        layer: layers that were drawn.
        passes, calls: as `seconds` gives them.
        size: nodes of the largest tree so far.
        price: tokens that a second must bring.
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
def more_pay(
    slots: Floats,
    drawn: Floats,
    unknown: Floats,
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
        slots: value, probability to be judged and rank of the next child of every node, `[3, rows, nodes]`.
        drawn: of the best node that a row has in this layer, its probability of acceptance, `[rows]`.
        unknown: rates of acceptance by rank, `[rows, ranks]`.
        first: rates of first children in all layers, `[rows, layers]`.
        layer: number of this layer.
        passes: as `seconds` gives them.
        call: of a layer of one node.
        size: nodes of the largest tree so far.
        price: tokens that a second must bring.
        thought: by how much the first of these nodes is thought better than it was.
    """
    rows, left = len(first), first.shape[1] - layer
    value, judged, rank = slots[0].copy(), slots[1].copy(), slots[2].copy()
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
            value[row, best] = (
                judged[row, best] * unknown[row, int(min(rank[row, best], unknown.shape[1] - 1))]
            )
        if added <= 0:
            break
        tokens += thought * added if larger == size + 1 else added
        for length in range(left + 1):
            if larger + length < len(passes):
                spent = price * (passes[larger + length] - passes[size])
                if tokens + below[length] - spent > least:
                    return True
    return False


@lru_cache(maxsize=64)
def seconds(
    costs: PassCosts, budget: int, rows: int, context: float, rate: float
) -> tuple[
    Float[np.ndarray, " sizes"],
    Float[np.ndarray, " nodes"],
    Float[np.ndarray, " sizes"],
    Float[np.ndarray, " sizes"],
    Float[np.ndarray, " nodes"],
]:
    """Returns what is known before anything is drafted.

    Seconds of rounds by the nodes of a row; of draft calls; the least slopes, from each size and from any
    larger one; and tokens of chains by their length, in the time of a round without one, where `rate` of the
    tokens are accepted.
    """
    sizes, at = np.arange(1, budget + 2), dict[str, Any](rows=rows, context=context)
    rounds = costs.target(sizes, **at) + costs.rest_seconds(sizes, **at)
    calls = costs.draft_seconds(sizes[:-1], **at)
    chains = sizes[:-1]
    times = (rounds[chains] + chains * calls[0]) / rounds[0]
    slopes = _least_slopes(rounds)
    least = np.minimum.accumulate(slopes[::-1])[::-1].copy()
    return rounds, calls, slopes, least, (1 + np.cumsum(rate**chains)) / times


def _least_slopes(times: Float[np.ndarray, " sizes"]) -> Float[np.ndarray, " sizes"]:
    """Returns the least seconds per node from every size on; all nodes that a step allows pay for it."""
    sizes = np.arange(len(times))
    more = sizes - sizes[:, None]
    slopes = np.where(more > 0, (times - times[:, None]) / np.maximum(more, 1), np.inf)
    least: Float[np.ndarray, " sizes"] = np.maximum(slopes.min(1), 0.0)
    return least
