"""DySpec's greedy tree at the price of a shallow one: as many draft calls as the tree has layers."""

from __future__ import annotations

import heapq
import math

import attrs

from draftwood import (
    WAIT,
    Deterministic,
    Growing,
    LevelPlan,
    Proposal,
    Randomness,
    TreeBuilder,
    WithoutReplacement,
)
from draftwood.base.validators import at_least, probability
from draftwood.strategies.acceptance_vectors import as_acceptance
from draftwood.strategies.laws import as_law
from draftwood.strategies.likely_paths import most_likely_tree
from draftwood.strategies.policies.dyspec import GreedyTree, sampled_alone, sampled_or_top


class LargestValues:
    """The slots worth most, of one tree or of the trees of several rows.

    Attributes:
        heap: the `count` largest values so far, the smallest first: the bar for new ones.
        later: slots of no more than this value are left out where they are not the first of their node.
        rows: trees that grow under it.
    """

    __slots__ = ("_kept", "_slots", "count", "heap", "later", "rows")

    def __init__(self, count: int, threshold: float, *, later: float = 0.0, rows: int = 1) -> None:
        """No slots yet.

        Args:
            count: slots that are kept.
            threshold: slots of no more than this value are left out.
            later, rows: as above.
        """
        self.count, self.later, self.rows = count, later, rows
        self.heap = [threshold] * count
        self._slots: list[list[tuple[float, int, int]]] = []
        self._kept: list[list[int]] | None = None

    def enter(self, slots: list[tuple[float, int, int]]) -> int:
        """Enter a drawn tree: of every node, the root first, value, depth and number among its siblings.

        Returns:
            The tree's number, for `kept`.
        """
        self._slots.append(slots)
        return len(self._slots) - 1

    def slots(self, tree: int) -> tuple[tuple[float, int, int], ...]:
        """Returns value, depth and number among siblings of the drafted nodes that a tree keeps, in order."""
        entered, kept = self._slots[tree], self.kept(tree)
        return tuple(entered[node] for node in (range(len(entered)) if kept is None else kept))[1:]

    def kept(self, tree: int) -> list[int] | None:
        """Returns the nodes of a tree that are among the largest, ascending; None where all trees keep all.

        Of equal values the higher node stays, then the earlier sibling, then the earlier tree and node: no
        token decides, nor how many are drawn at once.
        """
        if sum(map(len, self._slots)) <= self.count + len(self._slots):
            return None
        if self._kept is None:
            ranked = sorted(
                (-value, depth, rank, number, node)
                for number, slots in enumerate(self._slots)
                for node, (value, depth, rank) in enumerate(slots)
            )
            self._kept = [[] for _ in self._slots]
            for *_, number, node in ranked[: self.count + len(self._slots)]:
                self._kept[number].append(node)
        return sorted(self._kept[tree])


@attrs.frozen
class LayeredDySpec(GreedyTree):
    """The tree of `DySpec`, layer by layer.

    A slot's value is fixed before its token is known and never exceeds its ancestors' values. So it
    suffices to draw, in every layer, the slots whose value reaches the `budget`-th largest so far,
    and to keep the `budget` largest at the end: with the noise tied to the node this is the heap's
    tree node for node. Dropping by value looks at no token, so it biases nothing.

    Attributes:
        budget: nodes in the tree.
        depth: layers at most; None leaves the depth to the values.
        threshold: slots of no more than this value are left out, so that the tree shrinks where the
            draft is unsure (DySpec, algorithm 2, under a budget).
        law, acceptance: as for `DySpec`.

    Source: draftwood; DySpec's appendix B.1 leaves this open. With law `"top-k"`: OPT-Tree (arXiv
    2406.17276).
    """

    budget: int = attrs.field(default=32, validator=at_least(1))
    depth: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(1)))
    threshold: float = attrs.field(default=0.0, validator=probability)
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law, validator=sampled_or_top)
    acceptance: tuple[float, ...] = attrs.field(default=(), converter=as_acceptance, validator=sampled_alone)
    source = "draftwood (DySpec, appendix B.1); OPT-Tree"

    def grow(self, root: int, rng: Randomness) -> Growing:
        if self.law is Deterministic:
            # Without a depth the levels have no end that a draft could be told of beforehand.
            depth, budget = self.depth or self.budget, self.budget
            plan = LevelPlan(depth, budget, branching=budget, budget=budget, threshold=self.threshold)
            return most_likely_tree(root, plan, announced=self.depth is not None)
        return self.layers(root, LargestValues(self.budget, self.threshold), self.depth)

    def layers(self, root: int, largest: LargestValues, most: int | None) -> Growing:
        """Grow the tree layer by layer, `most` layers; other rows may grow theirs by the same `largest`."""
        tree = TreeBuilder(root)
        path_probs = [1.0]  # the draft's probability of the path to every node
        values, ranks = [math.inf], [0]  # of the slot that every node was drawn in, and among siblings
        best = largest.heap
        level, depth = [0], 0
        while level and depth != most:
            bar = 0.0 if self.acceptance else best[0] * (1 - 1e-5)  # a little less, since a GPU rounds
            floors = [bar / path_probs[node] for node in level]
            drawn = yield tree.open(level, self.law, ahead=self.budget, floors=floors)
            opened = [self.next_child(siblings) for siblings in drawn]
            # The slot that is worth most first, so that none is drawn in vain that the level itself outbids.
            # Rounding must not lift a slot above its own node, which would then be dropped first.
            waiting = [
                (-min(path_probs[node] * slots.value, values[node]), 0, index)
                for index, (node, slots) in enumerate(zip(level, opened, strict=True))
            ]
            heapq.heapify(waiting)
            below: list[tuple[int, int, float, float]] = []
            while waiting and (value := -waiting[0][0]) > best[0]:
                _, rank, index = waiting[0]
                node, slots = level[index], opened[index]
                if (rank and value <= largest.later) or not slots.draw():
                    heapq.heappop(waiting)
                    continue
                heapq.heapreplace(best, value)
                below.append((index, rank, value, path_probs[node] * slots.worth))
                following = min(path_probs[node] * slots.value, values[node])
                heapq.heapreplace(waiting, (-following, rank + 1, index))
            below.sort()  # node by node
            above, level = level, []
            for index, rank, value, path_prob in below:
                child = tree.add(above[index], opened[index].siblings.tokens[rank])
                tree.siblings[above[index]] = opened[index].siblings
                values.append(value)
                ranks.append(rank)
                path_probs.append(path_prob)
                if path_prob > best[0]:
                    level.append(child)
            depth += 1
        row = largest.enter(list(zip(values, tree.depths, ranks, strict=True)))
        if largest.rows > 1:
            yield WAIT
        if (kept := largest.kept(row)) is not None:
            tree.keep(kept)
        return tree.finish()
