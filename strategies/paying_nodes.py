"""Choice of the nodes that are worth their time, over all rows and layer by layer."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from jaxtyping import Float

from draftwood import Deterministic, PassCosts, Siblings
from draftwood.strategies.acceptance_history import USUAL, AcceptanceHistory, AcceptanceRates, RowRates

OPTIMISM = 0.75
"""Standard errors by which a first node is thought better than it was, so that it is tried again."""

ROUNDS = 3.0
"""Rounds that the assumed speed counts for, before any was reached."""


@attrs.frozen
class DrawnNode:
    """A drawn child of a layer.

    Attributes:
        parent: number of its parent in the layer above.
        rank: among its siblings.
        chance: the draft's probability of it, given that the earlier siblings failed.
        accepted: the estimated probability that the verifier accepts it.
    """

    parent: int
    rank: int
    chance: float
    accepted: float


class NodeSlot:
    """Room for the next child of one node.

    Attributes:
        value: the estimated probability that the child is accepted, known before its token is drawn; 0 where
            no token is left.
    """

    __slots__ = ("_left", "_rates", "_reached", "_siblings", "value")

    def __init__(self, siblings: Siblings, rates: AcceptanceRates, accepted: float) -> None:
        """`accepted`: the estimated probability that the node itself is."""
        self._siblings, self._rates = siblings, rates
        self._reached, self._left = accepted, 1.0  # by the verifier, and of the draft's distribution
        self._estimate()

    def _estimate(self) -> None:
        rank, weight = len(self._siblings.tokens), self._siblings.weight
        if weight <= 0:
            self.value = 0.0
        elif self._siblings.law is Deterministic:
            self.value = self._reached * self._rates.known(rank, self._share(weight))
        else:
            self.value = self._reached * self._rates.unknown(rank)

    def _share(self, weight: float) -> float:
        return min(weight / self._left, 1.0) if self._left > 0 else 1.0

    def draw(self, parent: int) -> DrawnNode | None:
        """Draw the next child of the node with this number; None where no token is left."""
        rank = len(self._siblings.tokens)
        if not self._siblings.draw():
            self.value = 0.0
            return None
        weight = self._siblings.chances[-1]
        chance = self._share(weight)
        rate = self._rates.known(rank, chance)
        drawn = DrawnNode(parent, rank, chance, self._reached * rate)
        self._left, self._reached = max(self._left - weight, 0.0), self._reached * (1 - rate)
        self._estimate()
        return drawn


class LayerSlots:
    """The slots of a row's layer.

    Attributes:
        drawn: nodes, in drawn order.
    """

    def __init__(self, slots: Sequence[NodeSlot]) -> None:
        self._slots, self.drawn = slots, list[DrawnNode]()
        self._waiting = [(-slot.value, number) for number, slot in enumerate(slots)]
        heapq.heapify(self._waiting)

    @property
    def value(self) -> float:
        """Returns the value of the slot that is worth most; 0 where there is none."""
        return -self._waiting[0][0] if self._waiting else 0.0

    def draw(self) -> bool:
        """Draw one more node where it is worth most; whether there is one."""
        while self.value > 0:
            number = self._waiting[0][1]
            node = self._slots[number].draw(number)
            heapq.heapreplace(self._waiting, (-self._slots[number].value, number))
            if node is not None:
                self.drawn.append(node)
                return True
        return False


class PayingNodes:
    """The trees of one round of all rows, which grow while that pays.

    The best long-run rate of tokens a second is the price of a second (Dinkelbach's method for a ratio): a
    node pays if the tokens that it adds in expectation exceed the price of the time that it adds. The rate
    that was reached so far is at most the best one, so it never asks too much of a node.

    A pass is padded to its largest tree, so one more node in every row costs the same as one more in
    the largest. Nodes are added to all rows at once while their values together pay for that.

    Nothing that was drawn is dropped, and all that decides on a node is known before its token.

    Attributes:
        rates: of acceptance, one per row.
        depth: layers at most.
        price: tokens that a second must bring.
        time: of the round so far, in rounds of ordinary decoding.
    """

    def __init__(
        self,
        histories: Sequence[AcceptanceHistory],
        costs: PassCosts,
        *,
        budget: int,
        depth: int,
        context: float = 0,
    ) -> None:
        """No nodes yet.

        Args:
            histories: of the rows.
            costs: of passes.
            budget: nodes of a row at most, without the root.
            depth: layers at most.
            context: mean tokens of a row.
        """
        rates = RowRates.of(histories)
        self.rates, self.depth = rates.rows(), depth
        at: dict[str, Any] = {"rows": len(histories), "context": context}
        sizes = np.arange(1, budget + 2)
        self._passes = costs.target(sizes, **at) + costs.rest_seconds(sizes, **at)
        self._calls = costs.draft_seconds(sizes[:-1], **at)
        self._first = rates.first(depth, optimism=OPTIMISM)
        self.price = self._reached_rate(histories)
        self._prices = self.price * _least_slopes(self._passes)
        self._sizes = [0] * len(histories)
        self._leaves = [[1.0] for _ in histories]  # their probabilities of acceptance, the largest first
        self._offered: dict[int, LayerSlots] = {}
        self._layer, self._drafting, self.time = 0, 0.0, 1.0
        self._width = self._paying_width()

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

    def offer(self, row: int, slots: LayerSlots) -> None:
        """Offer the slots of a row's next layer; they are drawn from when `width` of that layer is asked."""
        self._offered[row] = slots

    def _reached_rate(self, histories: Sequence[AcceptanceHistory]) -> float:
        """Returns the tokens a second that were reached, and at least the rate of ordinary decoding."""
        chains = np.arange(1, min(self.depth + 1, len(self._passes)))
        tokens = 1 + np.cumsum(USUAL[0] ** chains)
        times = (self._passes[chains] + chains * self._calls[0]) / self._passes[0]
        assumed = float((tokens / times).max(initial=1.0))
        emitted = sum(of.tokens for of in histories) + ROUNDS * assumed
        reached = emitted / (sum(of.time for of in histories) + ROUNDS)
        return max(reached, 1.0) * len(histories) / float(self._passes[0])

    def _draw(self) -> None:
        offered, self._offered = self._offered, {}
        paid, most = max(self._sizes), len(self._passes) - 1
        least = {row: self._least_of_budget(row, floor=self._prices[paid] / len(offered)) for row in offered}
        while True:
            for row, slots in offered.items():
                while self._sizes[row] < paid and slots.value > least[row] and slots.draw():
                    self._sizes[row] += 1
            values = sum(slots.value for slots in offered.values())
            if paid == most or values <= max(self._prices[paid], sum(least.values())):
                break
            paid += 1
        self._leaves = [[] for _ in self._sizes]
        for row, slots in offered.items():
            self._leaves[row] = sorted((node.accepted for node in slots.drawn), reverse=True)

    def _least_of_budget(self, row: int, *, floor: float) -> float:
        """Returns the least value of the nodes that a row's budget may be expected to hold at the end.

        They are the best ones below its leaves if all children are accepted at the usual rates. A node of
        this layer that is worth less would take the place of a better one further down. 0 where nodes
        of no more than `floor` do not pay before the budget is spent.
        """
        rates, room = self.rates[row], len(self._passes) - 1 - self._sizes[row]
        # At most one node of a depth is accepted, so the values of a depth are at most 1 together.
        if self.depth + 1 - self._layer <= room * floor:
            return 0.0
        leaves = self._leaves[row][: self._width]
        # Of a slot: minus its value, the probability that it is judged, its rank and its depth.
        slots = [(-leaf * rates.first(self._layer), leaf, 0, self._layer) for leaf in leaves]
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

    def _paying_width(self) -> int:
        """Returns how many leaves of a row are opened next, if chains below them pay for their time."""
        size, left = max(self._sizes), self.depth - self._layer
        most = min(max(map(len, self._leaves)), len(self._passes) - 1 - size)
        if most < 1 or left < 1:
            return 0
        accepted = np.array([(leaves + [0.0] * most)[:most] for leaves in self._leaves])
        # Of the best leaves of every row, and of chains below them: [widths, layers], over all rows.
        tokens = accepted.cumsum(1).T @ self._first[:, self._layer :].cumprod(1).cumsum(1)
        widths, layers = np.arange(1, most + 1)[:, None], np.arange(1, left + 1)
        sizes = size + widths * layers
        fits = sizes < len(self._passes)
        times = self._passes[np.where(fits, sizes, 0)] - self._passes[size] + layers * self._calls[widths - 1]
        gains = np.where(fits, tokens - self.price * times, -np.inf)
        best = int(gains.argmax())
        return 1 + best // left if gains.flat[best] > 0 else 0


def _least_slopes(times: Float[np.ndarray, " sizes"]) -> Float[np.ndarray, " sizes"]:
    """Returns the least seconds per node from every size on; all nodes that a step allows pay for it."""
    sizes = np.arange(len(times))
    more = sizes - sizes[:, None]
    slopes = np.where(more > 0, (times - times[:, None]) / np.maximum(more, 1), np.inf)
    least: Float[np.ndarray, " sizes"] = np.maximum(slopes.min(1), 0.0)
    return least
