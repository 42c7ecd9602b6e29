"""Choice of the nodes that are worth their time, over all rows and layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import sqrt
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from draftwood import PassCosts
from draftwood.protocols.pass_costs import CONTEXT
from draftwood.strategies.acceptance_history import AcceptanceHistory, AssumedRates, RowRates
from draftwood.strategies.layer_choice import choose_children, choose_leaves

Floats = NDArray[np.float64]

OPTIMISM = 1.5
"""Standard errors by which a row's first node is thought better than it was, so that it is tried again.

A trial costs a round of all rows, so for several they are divided by the root of their number.
"""

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
        rows: of the round.
        price: tokens that a second must bring.
        layer: of the trees so far.
        time: of the round so far, in rounds of ordinary decoding.
        chances: for each row, the draft's probability of every node, given that its earlier siblings failed.
        width: leaves of a row that get children in the next layer, at most; 0 where the trees end.
        opened: their places in the row, counted from its first leaf, int64 `[rows, width]`.
        numbers: of them in every row, int64 `[rows]`.
        most_children: of one of them. The values of a layer are about 1 together, and the largest come
            first. So the n-th node that is added to all rows brings about 1/n a row, besides those that a
            smaller tree gets up to the largest.
    """

    def __init__(
        self,
        histories: Sequence[AcceptanceHistory],
        costs: PassCosts,
        assumed: AssumedRates,
        *,
        budget: int,
        depths: Int[np.ndarray, " rows"],
        context: float = 0,
    ) -> None:
        """No nodes yet.

        Args:
            histories: of the rows.
            costs: of passes.
            assumed: rates of acceptance before anything was judged.
            budget: nodes of a row at most, without the root.
            depths: layers of every row at most.
            context: mean tokens of a row.
        """
        self.rows, self._depths, depth = len(histories), depths, int(depths.max())
        self._rates = RowRates.of(histories, assumed, depths=depths, optimism=OPTIMISM / sqrt(self.rows))
        context = CONTEXT * round(context / CONTEXT)
        times = costs, budget, self.rows, context
        self._passes, self._calls, self._slopes, self._least, chains = seconds(*times, assumed.by_rank[0])
        assumed_rate = float(chains[min(depth, budget) - 1]) if depth else 1.0
        self.price = self._reached_rate(histories, max(assumed_rate, 1.0))
        self._sizes = np.zeros(self.rows, np.int64)
        # Of the leaves of each row, their estimated probabilities of acceptance.
        self._accepted, self._counts = np.ones((self.rows, 1)), np.ones(self.rows, np.int64)
        self.chances = [list[float]() for _ in histories]
        self.layer, self._drafting, self.time = 0, 0.0, 1.0
        self._choose_leaves()

    def choose(
        self, chances: Float[np.ndarray, "rows nodes children"], *, known: bool
    ) -> Int[np.ndarray, "rows nodes"]:
        """Choose the children of the opened leaves that are kept, which are the next leaves.

        Args:
            chances: the draft's probability of every child in drawn order; 0 where there is none.
            known: whether they are the most likely tokens, so that no chance decides on them.

        Returns:
            How many children every leaf keeps, int64 `[rows, nodes]`.
        """
        self.layer += 1
        self._drafting += float(self._calls[self.width - 1])
        rates = self._rates
        # Whole arrays: machine code is made once for those, and once more for pieces of others.
        kept: Int[np.ndarray, "rows nodes"]
        kept, counts, self._accepted, shares = choose_children(
            chances,
            self._judged,
            self._sizes,
            rates.by_chance,
            rates.by_rank,
            rates.first,
            self.layer,
            self._passes,
            self._slopes,
            float(self._calls[0]),
            self.price,
            self._rates.thought,
            known,
        )
        self._counts = counts
        self._sizes += counts
        for of_row, count, more in zip(self.chances, counts.tolist(), shares.tolist(), strict=True):
            of_row += more[:count]
        self.time = float((self._passes[self._sizes.max()] + self._drafting) / self._passes[0])
        self._choose_leaves()
        return kept

    def _reached_rate(self, histories: Sequence[AcceptanceHistory], assumed: float) -> float:
        """Returns the tokens a second that were reached, and at least the rate of ordinary decoding."""
        emitted = sum([of.tokens for of in histories]) + ROUNDS * assumed
        reached = emitted / (sum([of.time for of in histories]) + ROUNDS)
        return max(reached, 1.0) * self.rows / float(self._passes[0])

    def _choose_leaves(self) -> None:
        self.opened, self.numbers, self._judged, self.most_children = choose_leaves(
            self._accepted,
            self._counts,
            self._sizes,
            self._rates.first,
            self._depths,
            self.layer,
            self._passes,
            self._calls,
            self._least,
            self.price,
            self._rates.thought,
        )
        self.width = self.opened.shape[1]


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
