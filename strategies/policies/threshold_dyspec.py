"""DySpec's threshold tree: every slot that is worth enough, layer by layer."""

from __future__ import annotations

import attrs

from draftwood import Growing, Proposal, Randomness, TreeBuilder, WithoutReplacement
from draftwood.base.validators import at_least, probability
from draftwood.strategies.acceptance_vectors import as_acceptance
from draftwood.strategies.laws import as_law
from draftwood.strategies.policies.dyspec import GreedyTree, sampled_alone, sampled_or_top

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

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree, least = TreeBuilder(root), self._least
        level, depth = {0: 1.0}, 0  # every node with the draft's probability of the path to it
        while level and depth != self.depth and len(tree) <= self.budget:
            ahead = min(self.budget, max(16, 2 * self.budget // len(level)))
            drawn = yield tree.open(list(level), self.law, ahead=ahead)
            below = {}
            for (node, path_prob), siblings in zip(level.items(), drawn, strict=True):
                slots = self.next_child(siblings)
                while len(tree) <= self.budget and slots.value > 0 and path_prob * slots.value >= least:
                    if not slots.draw():
                        break
                    child = tree.add_last(node, siblings)
                    if path_prob * slots.worth >= least:
                        below[child] = path_prob * slots.worth
            level, depth = below, depth + 1
        return tree.finish()
