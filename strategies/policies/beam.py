"""Beam search: every level keeps the most likely paths."""

from __future__ import annotations

import attrs

from draftwood import Deterministic, Growing, LevelPlan, Randomness, TreePolicy
from draftwood.base.validators import at_least
from draftwood.strategies.likely_paths import most_likely_tree


@attrs.frozen
class Beam(TreePolicy):
    """The `width` most likely paths of every level, for `steps` levels; a dropped path stays in the tree.

    With a `budget`, only so many nodes stay: those with the most likely paths of all levels. A level that
    holds none of them ends the search.

    Source: STree, section 5.1 (M beams, N steps); with a budget, SpecExec's search (arXiv 2406.02532).
    """

    width: int = attrs.field(default=4, validator=at_least(1))
    steps: int = attrs.field(default=4, validator=at_least(1))
    budget: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(1)))
    laws = frozenset({Deterministic})
    source = "STree, section 5.1; SpecExec"

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return self.width > 1

    @property
    def plan(self) -> LevelPlan:
        """Returns how its levels follow from the draft's distributions."""
        budget = self.budget or self.width * self.steps
        return LevelPlan(self.steps, self.width, branching=self.width, budget=budget, candidates=self.width)

    def grow(self, root: int, rng: Randomness) -> Growing:
        return most_likely_tree(root, self.plan)
