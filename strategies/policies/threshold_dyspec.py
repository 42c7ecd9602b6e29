"""DySpec's threshold tree: every slot that is worth enough, layer by layer."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import attrs
import numpy as np
from torch import Tensor

from draftwood import Proposal, Randomness, Request, RowGrowth, TokenTree, TreeBuilder, WithoutReplacement
from draftwood.randomness import UniformRandomness
from draftwood.row_growth import Level, aligned
from draftwood.strategies.acceptance_vectors import as_acceptance
from draftwood.strategies.laws import as_law
from draftwood.strategies.policies.dyspec import GreedyTree, sampled_alone, sampled_or_top, start_children
from draftwood.strategies.policies.level_draws import drawn_at_once, start_slots
from draftwood.strategies.policies.slot_trees import SlotTrees
from draftwood.validators import at_least, probability

_ANY = np.finfo(np.float64).tiny
_ROUNDING = 1e-4  # the probabilities of a draft may add up to a little less than 1


@attrs.frozen
class ThresholdDySpec(GreedyTree):
    """Every slot worth at least `threshold` is drawn, layer by layer, until there are `budget` nodes.

    A slot's value is that of `DySpec`. The threshold is fixed beforehand, which leaves the tree smaller
    than the budget where the draft is unsure. Where it is sure the budget ends the tree in the order of
    drawing, so that the layers above are complete and those below are missing, however much their slots
    are worth. `LayeredDySpec` asks the draft as rarely, but meets the threshold that fills the budget
    while it draws, and keeps the slots worth most.

    Attributes:
        budget: nodes in the tree at most.
        threshold: the value from which on a slot is drawn, give or take 1 part in 10,000 for rounding;
            None is 1 / `budget`.
        depth: layers at most; None leaves the depth to the values.
        law, acceptance: as for `DySpec`.

    Source: DySpec, algorithm 2 (arXiv 2410.11744), with the test in line 9 turned round: it draws while
    the value is at least the threshold. The paper's settings are 768 nodes and 0.001, "around 1 / n".
    """

    budget: int = attrs.field(default=768, validator=at_least(1))
    threshold: float | None = attrs.field(default=None, validator=attrs.validators.optional(probability))
    depth: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(1)))
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law, validator=sampled_or_top)
    acceptance: tuple[float, ...] = attrs.field(default=(), converter=as_acceptance, validator=sampled_alone)
    source = "DySpec, algorithm 2"

    @property
    def _least(self) -> float:
        """The value from which on a slot is drawn."""
        return (1 / self.budget if self.threshold is None else self.threshold) * (1 - _ROUNDING)

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        threshold = self._least
        tree = TreeBuilder(root)
        level, depth = {0: 1.0}, 0  # every node with the draft's probability of the path to it
        while level and depth != self.depth and len(tree) <= self.budget:
            probs = yield tree.request(list(level))
            room = self.budget + 1 - len(tree)
            drawn = start_children(self.law, list(level), probs, room, rng, self.acceptance)
            below = {}
            for node, children in drawn.items():
                path_prob = level[node]
                while (
                    len(tree) <= self.budget
                    and children.next_value > 0
                    and path_prob * children.next_value >= threshold
                ):
                    token, chance = children.draw()
                    child = tree.add(node, token)
                    if path_prob * chance >= threshold:
                        below[child] = path_prob * chance
                if children.tokens:
                    tree.proposals[node] = children.proposal()
            level, depth = below, depth + 1
        return tree.finish()

    def grow_rows(self, roots: Sequence[int], rngs: Sequence[Randomness]) -> RowGrowth:
        if not drawn_at_once(rngs, self.law):
            return super().grow_rows(roots, rngs)
        return self._grow_levels(roots, rngs)

    def _grow_levels(self, roots: Sequence[int], rngs: Sequence[UniformRandomness]) -> RowGrowth:
        grown = SlotTrees(roots)
        level, depth = grown.trees.roots, 0
        while not level.empty and depth != self.depth:
            probs = yield from grown.trees.ask(level)
            slots = start_slots(self.law, probs, rngs, level.counts, self.budget, self.acceptance)
            drawn = grown.open(level)
            room = self.budget + 1 - grown.trees.sizes
            for _ in range(room.max()):
                wanted = drawn.next_values(slots) >= max(self._least, _ANY)
                if not wanted.any():
                    break
                drawn.draw(slots, wanted)
            new, path_probs = grown.add(drawn, drawn.values >= self._least, room)
            goes_on = (path_probs >= self._least) & (grown.trees.sizes <= self.budget)[:, None]
            level, depth = Level(aligned(new, (new >= 0) & goes_on)), depth + 1
        return grown.trees.finish(self.law)
