"""Beam search: every level keeps the most likely paths."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import attrs
from torch import Tensor

from draftwood import Deterministic, LevelPlan, Levels, Randomness, Request, RowGrowth, TokenTree, TreePolicy
from draftwood.strategies.likely_paths import LikelyPaths
from draftwood.strategies.likely_rows import LikelyRows
from draftwood.validators import at_least


@attrs.frozen
class Beam(TreePolicy):
    """The `width` most likely paths of every level, for `steps` levels; a path left behind stays in the tree.

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

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        paths, level = LikelyPaths(root), [0]
        for _ in range(self.steps):
            probs = yield paths.tree.request(level)
            beam = paths.extend(level, probs, branching=self.width, count=self.width)
            # What the budget leaves out now leads to nothing that it would take in later.
            kept = set(paths.best(self.budget))
            level = [node for node in beam if node in kept]
            if not level:
                break
        return paths.finish(paths.best(self.budget))

    @property
    def level_plan(self) -> LevelPlan:
        budget = self.budget or self.width * self.steps
        return LevelPlan(self.steps, self.width, branching=self.width, budget=budget, candidates=self.width)

    def planned_trees(self, roots: Sequence[int], levels: Levels) -> Sequence[TokenTree]:
        return levels.trees(roots, self.level_plan, by_parent=False)

    def grow_rows(self, roots: Sequence[int], rngs: Sequence[Randomness]) -> RowGrowth:
        paths = LikelyRows(roots)
        for _ in range(self.steps):
            beam = yield from paths.extend(branching=self.width, count=self.width)
            if not paths.go_on(beam, self.budget):
                break
        return paths.finish(self.budget)
