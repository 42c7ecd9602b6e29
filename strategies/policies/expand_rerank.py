"""EAGLE-2's tree: expand the most likely nodes of every level, then keep the best of all candidates."""

from __future__ import annotations

import attrs

from draftwood import Deterministic, Growing, LevelPlan, Randomness, TreePolicy
from draftwood.base.validators import at_least
from draftwood.strategies.likely_paths import most_likely_tree


@attrs.frozen
class ExpandRerank(TreePolicy):
    """The `budget` most likely paths among the candidates of `depth` levels.

    In every level, the `width` candidates with the most likely paths get their `branching` most likely
    tokens as candidates of the next level. At the end all candidates compete, those that were not
    expanded too.

    Source: EAGLE-2, section 4 (arXiv 2406.16858), with its settings for a 7B model as defaults (60 nodes
    with the root).
    """

    depth: int = attrs.field(default=6, validator=at_least(1))
    branching: int = attrs.field(default=10, validator=at_least(1))
    width: int = attrs.field(default=10, validator=at_least(1))
    budget: int = attrs.field(default=59, validator=at_least(1))
    laws = frozenset({Deterministic})
    source = "EAGLE-2, section 4"

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return self.branching > 1

    @property
    def plan(self) -> LevelPlan:
        """Returns how its levels follow from the draft's distributions."""
        return LevelPlan(self.depth, self.width, branching=self.branching, budget=self.budget)

    def grow(self, root: int, rng: Randomness) -> Growing:
        return most_likely_tree(root, self.plan)
