"""Choice of the nodes that are worth their time, over all rows and layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from draftwood import Deterministic, PassCosts, Siblings
from draftwood.protocols.pass_costs import CONTEXT
from draftwood.strategies.acceptance_history import AcceptanceHistory, AssumedRates, RowRates
from draftwood.strategies.layer_choice import choose_children, choose_leaves

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

    All that decides on a node is known before its token.

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
        self.rows, self.depth, self._budget = len(histories), depth, budget
        self._rates = rates = RowRates.of(histories, assumed, depth=depth, optimism=OPTIMISM)
        context = CONTEXT * round(context / CONTEXT)
        times = costs, budget, self.rows, context
        self._passes, self._calls, self._slopes, self._least, chains = seconds(*times, assumed.by_rank[0])
        self._thought = float(rates.first[:, 0].sum() / rates.by_depth[:, 0].sum()) if depth else 1.0
        assumed_rate = float(chains[min(depth, budget) - 1]) if depth else 1.0
        self.price = self._reached_rate(histories, max(assumed_rate, 1.0))
        self._sizes = np.zeros(self.rows, np.int64)
        # Of the leaves of each row, their estimated probabilities of acceptance.
        self._accepted, self._counts = np.ones((self.rows, 1)), np.ones(self.rows, np.int64)
        self._chances = [list[float]() for _ in histories]
        self._offered: list[Sequence[Siblings]] = [()] * self.rows
        self._kept: list[list[int]] = []  # children by row and opened leaf
        self._layer, self._drafting, self.time = 0, 0.0, 1.0
        self._choose_leaves()

    def width(self, layer: int) -> int:
        """Returns how many leaves of a row may get children in the layer after `layer`; 0 ends all trees.

        All rows must have offered the children of `layer` before.
        """
        if layer > self._layer:
            self._drafting += float(self._calls[self._width - 1])
            self._layer = layer
            self._choose_children()
            self.time = float((self._passes[self._sizes.max()] + self._drafting) / self._passes[0])
            self._choose_leaves()
        return self._width

    def opened(self, row: int) -> list[int]:
        """Returns the places of the row's leaves that get children in the next layer, in their order."""
        return self._opened[row]

    def most_children(self, row: int) -> int:
        """Returns how many children a node of a row may get in the next layer.

        The values of a layer are about 1 together, and the largest come first. So the n-th node that is
        added to all rows brings about 1/n a row, besides those that a smaller tree gets up to the largest.
        """
        return self._most[row]

    def offer(self, row: int, opened: Sequence[Siblings]) -> None:
        """Offer the children of the leaves that a row has opened; `width` of their layer chooses."""
        self._offered[row] = opened

    def kept(self, row: int) -> list[int]:
        """Returns how many children each of the row's opened leaves has."""
        return self._kept[row]

    def chances(self, row: int) -> list[float]:
        """Returns the draft's probability of each node of a row, given that its earlier siblings failed."""
        return self._chances[row]

    def _reached_rate(self, histories: Sequence[AcceptanceHistory], assumed: float) -> float:
        """Returns the tokens a second that were reached, and at least the rate of ordinary decoding."""
        emitted = sum([of.tokens for of in histories]) + ROUNDS * assumed
        reached = emitted / (sum([of.time for of in histories]) + ROUNDS)
        return max(reached, 1.0) * self.rows / float(self._passes[0])

    def _choose_children(self) -> None:
        rates, offered = self._rates, self._offered
        shape = self.rows, self._width, max(1, *[len(one.chances) for of_row in offered for one in of_row])
        chances, judged, known = np.zeros(shape), np.zeros(shape[:2]), False
        for row, (places, of_row) in enumerate(zip(self._opened, offered, strict=True)):
            for number, (place, siblings) in enumerate(zip(places, of_row, strict=False)):
                found = siblings.chances
                chances[row, number, : len(found)] = found
                judged[row, number] = self._accepted[row, place]
                known = siblings.law is Deterministic
        # Whole arrays: machine code is made once for those, and once more for pieces of others.
        kept, counts, self._accepted, shares = choose_children(
            chances,
            judged,
            self._sizes,
            rates.by_chance,
            rates.by_rank,
            rates.by_depth,
            rates.first,
            self._layer,
            self._passes,
            self._slopes,
            float(self._calls[0]),
            self.price,
            self._thought,
            known,
        )
        self._kept, self._counts, self._offered = kept.tolist(), counts, [()] * self.rows
        self._sizes += counts
        for of_row, count, more in zip(self._chances, counts.tolist(), shares.tolist(), strict=True):
            of_row += more[:count]

    def _choose_leaves(self) -> None:
        size = int(self._sizes.max())
        places, numbers = choose_leaves(
            self._accepted,
            self._counts,
            self._rates.first,
            self._layer,
            self._passes,
            self._calls,
            size,
            self.price,
        )
        self._opened = [of[:number] for of, number in zip(places.tolist(), numbers.tolist(), strict=True)]
        self._width = int(numbers.max())
        room, least = self._budget - size, self.price * float(self._least[size])
        paying = room if least <= 0 else min(room, int(self._thought * self.rows / least))
        self._most = [min(self._budget - of, size - of + 1 + paying) for of in self._sizes.tolist()]


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
    larger one; and by its length the tokens that the best chain so long writes in the time of a round without
    one, where `rate` of the tokens are accepted.
    """
    sizes, at = np.arange(1, budget + 2), dict[str, Any](rows=rows, context=context)
    rounds = costs.target(sizes, **at) + costs.rest_seconds(sizes, **at)
    calls = costs.draft_seconds(sizes[:-1], **at)
    chains = sizes[:-1]
    times = (rounds[chains] + chains * calls[0]) / rounds[0]
    slopes = _least_slopes(rounds)
    least = np.minimum.accumulate(slopes[::-1])[::-1].copy()
    reached = np.maximum.accumulate((1 + np.cumsum(rate**chains)) / times)
    return rounds, calls, slopes, least, reached


def _least_slopes(times: Float[np.ndarray, " sizes"]) -> Float[np.ndarray, " sizes"]:
    """Returns the least seconds per node from every size on; all nodes that a step allows pay for it."""
    sizes = np.arange(len(times))
    more = sizes - sizes[:, None]
    slopes = np.where(more > 0, (times - times[:, None]) / np.maximum(more, 1), np.inf)
    least: Float[np.ndarray, " sizes"] = np.maximum(slopes.min(1), 0.0)
    return least
