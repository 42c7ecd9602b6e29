"""EAGLE-2's tree: expand the most likely nodes of every level, then keep the best of all candidates."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import attrs
from torch import Tensor

from draftwood import Deterministic, LevelPlan, Levels, Randomness, Request, RowGrowth, TokenTree, TreePolicy
from draftwood.strategies.likely_paths import LikelyPaths
from draftwood.strategies.likely_rows import LikelyRows
from draftwood.validators import at_least


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

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        paths, level = LikelyPaths(root), [0]
        for _ in range(self.depth):
            probs = yield paths.tree.request(level)
            candidates = paths.extend(level, probs, branching=self.branching)
            # What the budget leaves out now leads to nothing that it would take in later.
            kept = set(paths.best(self.budget))
            level = [node for node in candidates[: self.width] if node in kept]
            if not level:
                break
        return paths.finish(paths.best(self.budget))

    @property
    def level_plan(self) -> LevelPlan:
        return LevelPlan(self.depth, self.width, branching=self.branching, budget=self.budget)

    def planned_trees(self, roots: Sequence[int], levels: Levels) -> Sequence[TokenTree]:
        return levels.trees(roots, self.level_plan, by_parent=False)

    def grow_rows(self, roots: Sequence[int], rngs: Sequence[Randomness]) -> RowGrowth:
        paths = LikelyRows(roots)
        for _ in range(self.depth):
            candidates = yield from paths.extend(branching=self.branching)
            if not paths.go_on(candidates[:, : self.width], self.budget):
                break
        return paths.finish(self.budget)
