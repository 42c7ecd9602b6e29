"""Trees of all rows whose nodes are drawn in the slots that are worth most, level by level."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from draftwood import Proposal, TreeBatch, TreesBuilder
from draftwood.row_growth import Level, widened
from draftwood.strategies.policies.level_draws import Numbers, Slots, Values


class SlotTrees:
    """Trees, the draft's probability of the path to every node, and the value of the slot it was drawn in.

    Attributes:
        trees: all nodes so far.
    """

    def __init__(self, roots: Sequence[int]) -> None:
        self.trees = TreesBuilder(roots)
        self._path_probs, self._values = np.ones((len(roots), 1)), np.full((len(roots), 1), np.inf)
        self._ranks = np.zeros((len(roots), 1))  # among the siblings

    def open(self, level: Level) -> OpenLevel:
        """The level's nodes, to draw their children."""
        return OpenLevel(level, level.of(self._path_probs), level.of(self._values))

    def add(
        self, drawn: OpenLevel, keep: NDArray[np.bool_], room: Numbers | None = None
    ) -> tuple[Numbers, Values]:
        """Add what was drawn and is to be kept, `[rows, m]`, of each row the first `room` `[rows]`.

        Returns:
            Node numbers `[rows, m]`, -1 where none, and the probabilities of their paths.
        """
        parents, tokens, values, path_probs = drawn.children()
        keep = (tokens >= 0) & keep
        if room is not None:
            keep = keep & (keep.cumsum(1) <= room[:, None])
        new = self.trees.add(parents, tokens, keep)
        most = int(self.trees.sizes.max())
        self._path_probs = _with(self._path_probs, most, new, path_probs)
        self._values = _with(self._values, most, new, values)
        ranks = np.arange(new.shape[1]) % max(drawn.most, 1)
        self._ranks = _with(self._ranks, most, new, np.broadcast_to(ranks, new.shape))
        return new, path_probs

    def finish(self, law: type[Proposal], budget: int) -> TreeBatch:
        """The trees of the `budget` nodes of each row whose slots are worth most, and the roots."""
        grown = self.trees.finish(law)
        if grown.tokens.shape[1] <= budget + 1:
            return grown
        valid = np.arange(grown.tokens.shape[1]) < grown.counts[:, None]
        # Of equal values the higher node stays, then the earlier sibling, then the earlier node: no token
        # decides, nor how many are drawn at once.
        keys = (self._ranks, grown.depths, np.where(valid, -self._values, np.inf))
        order = np.lexsort(keys, axis=1)
        keep = np.zeros_like(valid)
        np.put_along_axis(keep, order[:, : budget + 1], True, 1)
        return grown.kept(keep & valid)


def _with(values: Values, most: int, nodes: Numbers, new: Values) -> Values:
    """Values `[rows, nodes]` with the `new` ones of these nodes."""
    values = widened(values, most)
    rows, columns = np.nonzero(nodes >= 0)
    values[rows, nodes[rows, columns]] = new[rows, columns]
    return values


class OpenLevel:
    """The nodes of a level while their children are drawn."""

    def __init__(self, level: Level, path_probs: Values, limits: Values) -> None:
        self._level, self._path_probs, self._limits = level, path_probs, limits
        self.most = 0  # children of a node
        self._tokens: list[Numbers] = []
        self._values: list[Values] = []
        self._below: list[Values] = []

    def floors(self, bar: Values) -> Values:
        """What a node's slot is worth, relative to the node, where it is worth the `bar` `[rows]`; a little
        less, since a GPU rounds."""
        bars = np.broadcast_to(bar[:, None] * (1 - 1e-5), self._path_probs.shape)
        return np.divide(bars, self._path_probs, out=np.zeros(bars.shape), where=self._path_probs > 0)

    def next_values(self, slots: Slots) -> Values:
        """What each node's next slot is worth, `[rows, nodes]`; 0 where there is no node."""
        # Rounding must not lift a slot above its own node, which would then be dropped first.
        values = np.minimum(self._path_probs * slots.next_values, self._limits)
        return np.where(self._level.valid, values, 0.0)

    def draw(self, slots: Slots, wanted: NDArray[np.bool_], count: int = 1) -> Values:
        """Draw the next `count` children of the nodes `wanted` `[rows, nodes]`.

        Returns:
            The values of their slots `[rows, nodes, count]`; 0 elsewhere.
        """
        chosen = np.nonzero(wanted)
        drawn = slots.draw(chosen, count)
        path_probs, limits = self._path_probs[chosen][:, None], self._limits[chosen][:, None]
        shape = (*wanted.shape, count)
        tokens, values, below = np.full(shape, -1), np.zeros(shape), np.zeros(shape)
        tokens[chosen] = drawn[0]
        below[chosen] = path_probs * drawn[1]
        values[chosen] = np.minimum(path_probs * drawn[2], limits)
        self.most += count
        self._tokens.append(tokens)
        self._values.append(values)
        self._below.append(below)
        return values

    def fill(self, slots: Slots, best: Values) -> Values:
        """Draw every slot that is worth more than the least of the `best` values of its row.

        Args:
            slots: of the level.
            best: `[rows, budget]`, the largest values so far, least first.

        Returns:
            The same with the values of what was drawn.
        """
        if slots.one_by_one:
            return self._filled_one_by_one(slots, best)
        while (wanted := self.next_values(slots) > best[:, :1]).any():
            # As many children as it takes to fill the budget; what falls below the bar is dropped.
            missing = (best == best[:, :1]).sum(1) / np.maximum(wanted.sum(1), 1)
            values = self.draw(slots, wanted, int(max(missing.max(), 1)))
            best = np.concatenate([best, np.maximum(values.reshape(len(best), -1), best[:, :1])], 1)
            best = np.sort(best, 1)[:, values[0].size :]
        return best

    def _filled_one_by_one(self, slots: Slots, best: Values) -> Values:
        """The slot that is worth most first, so that none is drawn in vain that the level itself outbids."""
        path_probs, limits = self._path_probs.tolist(), self._limits.tolist()
        drawn: list[tuple[int, int, int, int, float, float]] = []
        filled = []
        for row, (bars, values) in enumerate(
            zip(best.tolist(), self.next_values(slots).tolist(), strict=True)
        ):
            # Of equal values the earlier sibling first, as `finish` keeps them.
            waiting = [(-value, 0, node) for node, value in enumerate(values) if value > bars[0]]
            heapq.heapify(waiting)
            while waiting and (value := -waiting[0][0]) > bars[0]:
                _, rank, node = waiting[0]
                token, chance = slots.draw_one(row, node)
                heapq.heapreplace(bars, value)
                above = path_probs[row][node]
                drawn.append((row, node, rank, token, value, above * chance))
                following = min(above * float(slots.next_values[row, node]), limits[row][node])
                heapq.heapreplace(waiting, (-following, rank + 1, node))
            filled.append(sorted(bars))
        if drawn:
            rows, nodes, ranks, tokens, worth, below = (np.array(of) for of in zip(*drawn, strict=True))
            self.most = int(ranks.max()) + 1
            shape = (*self._level.nodes.shape, self.most)
            for held, values_of, none in (
                (self._tokens, tokens, -1),
                (self._values, worth, 0.0),
                (self._below, below, 0.0),
            ):
                held.append(np.full(shape, none))
                held[-1][rows, nodes, ranks] = values_of
        return np.array(filled)

    @property
    def values(self) -> Values:
        """Of the slots of all children, `[rows, m]`, node after node."""
        return self.children()[2]

    def children(self) -> tuple[Numbers, Numbers, Values, Values]:
        """Of all children, node after node: parents, tokens (-1: none), values and path probabilities."""
        rows, width = self._level.nodes.shape
        if not self._tokens:
            nothing = np.zeros((rows, 0))
            return nothing.astype(np.int64), nothing.astype(np.int64), nothing, nothing
        tokens = np.concatenate(self._tokens, 2).reshape(rows, -1)
        values, below = (np.concatenate(of, 2).reshape(rows, -1) for of in (self._values, self._below))
        return np.repeat(self._level.nodes, tokens.shape[1] // width, 1), tokens, values, below
