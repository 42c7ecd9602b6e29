"""DySpec's greedy tree at the price of a shallow one: as many draft calls as the tree has layers."""

from __future__ import annotations

import heapq
from collections.abc import Generator, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood import (
    Deterministic,
    LevelPlan,
    Levels,
    Proposal,
    Randomness,
    Request,
    RowGrowth,
    TokenTree,
    TreeBuilder,
    WithoutReplacement,
)
from draftwood.randomness import UniformRandomness
from draftwood.row_growth import Level, aligned, by_device
from draftwood.strategies.acceptance_vectors import as_acceptance
from draftwood.strategies.laws import as_law
from draftwood.strategies.policies.dyspec import GreedyTree, sampled_alone, sampled_or_top, start_children
from draftwood.strategies.policies.level_draws import drawn_at_once, start_slots
from draftwood.strategies.policies.slot_trees import SlotTrees
from draftwood.validators import at_least, probability


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

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree = TreeBuilder(root)
        path_probs = [1.0]  # the draft's probability of the path to every node
        values, ranks = [float("inf")], [0]  # of the slot that every node was drawn in, and among siblings
        best = [self.threshold] * self.budget  # the largest values so far; best[0] is the bar for new ones
        level, depth = [0], 0
        while level and depth != self.depth:
            probs = yield tree.request(level)
            started = start_children(self.law, level, probs, self.budget, rng, self.acceptance)
            drawn: dict[int, list[tuple[int, float, float]]] = {node: [] for node in level}
            # One more child of every node whose next slot is worth it, so that no node's order decides. A
            # node that is left out stays so: its slots are worth ever less, and the bar rises.
            wanted = [(node, 0.0) for node in level]
            while wanted := [
                (node, value)
                for node, _ in wanted
                # Rounding must not lift a slot above its own node, which would then be dropped first.
                if (value := min(path_probs[node] * started[node].next_value, values[node])) > best[0]
            ]:
                for node, value in wanted:
                    token, chance = started[node].draw()
                    drawn[node].append((token, value, path_probs[node] * chance))
                    heapq.heappushpop(best, value)
            below = []
            for node, children in drawn.items():
                for rank, (token, value, path_prob) in enumerate(children):
                    below.append(tree.add(node, token))
                    values.append(value)
                    ranks.append(rank)
                    path_probs.append(path_prob)
                if children:
                    tree.proposals[node] = started[node].proposal()
            level, depth = [node for node in below if path_probs[node] > best[0]], depth + 1
        grown = tree.finish()
        if len(grown) <= self.budget + 1:
            return grown
        # Of equal values the higher node stays, then the earlier sibling, then the earlier node: no token
        # decides, nor how many are drawn at once.
        ranked = sorted(range(len(values)), key=lambda node: (-values[node], tree.depths[node], ranks[node]))
        return grown.subtree(torch.tensor(sorted(ranked[: self.budget + 1])))

    @property
    def level_plan(self) -> LevelPlan | None:
        if self.law is not Deterministic or self.depth is None:
            return None
        budget = self.budget
        return LevelPlan(self.depth, budget, branching=budget, budget=budget, threshold=self.threshold)

    def planned_trees(self, roots: Sequence[int], levels: Levels) -> Sequence[TokenTree]:
        plan = self.level_plan
        assert plan is not None
        return levels.trees(roots, plan, by_parent=True)

    def grow_rows(self, roots: Sequence[int], rngs: Sequence[Randomness]) -> RowGrowth:
        if not drawn_at_once(rngs, self.law):
            return super().grow_rows(roots, rngs)
        together = self._grow_levels(roots, rngs)
        # The best tokens of a node are one look; what is drawn takes arrays for one row, too.
        if len(roots) == 1 and self.law is Deterministic:
            return by_device(self.grow(roots[0], rngs[0]), together)
        return together

    def _grow_levels(self, roots: Sequence[int], rngs: Sequence[UniformRandomness]) -> RowGrowth:
        grown = SlotTrees(roots)
        best = np.full((len(roots), self.budget), self.threshold)  # the largest values so far, least first
        level, depth = grown.trees.roots, 0
        while not level.empty and depth != self.depth:
            probs = yield from grown.trees.ask(level)
            drawn = grown.open(level)
            floors = drawn.floors(best[:, 0])
            slots = start_slots(self.law, probs, rngs, level.counts, self.budget, self.acceptance, floors)
            best = drawn.fill(slots, best)
            values = drawn.values
            new, path_probs = grown.add(drawn, (values >= best[:, :1]) & (values > self.threshold))
            level = Level(aligned(new, (new >= 0) & (path_probs > best[:, :1])))
            depth += 1
        return grown.finish(self.law, self.budget)
