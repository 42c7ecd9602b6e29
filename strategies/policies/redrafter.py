"""ReDrafter's drafts: the paths that a beam search ends with, merged into a tree."""

from __future__ import annotations

import attrs

from draftwood import Deterministic, Growing, Randomness, TreePolicy
from draftwood.base.validators import at_least
from draftwood.strategies.likely_paths import LikelyPaths


@attrs.frozen
class BeamPaths(TreePolicy):
    """The `width` paths of `length` tokens that a beam search ends with; common beginnings are one node.

    A dropped path is not in the tree. Where the draft has nothing to propose a path ends, and drops
    out unless all end there.

    Source: ReDrafter, beam search and its dynamic tree attention (arXiv 2403.09919).
    """

    width: int = attrs.field(default=4, validator=at_least(1))
    length: int = attrs.field(default=5, validator=at_least(1))
    laws = frozenset({Deterministic})
    source = "ReDrafter"

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return self.width > 1

    def grow(self, root: int, rng: Randomness) -> Growing:
        paths, beam = LikelyPaths(root), [0]
        for _ in range(self.length):
            drawn = yield paths.tree.open(beam, Deterministic, self.width)
            longer = paths.extend(beam, drawn, count=self.width)
            if not longer:
                break
            beam = longer
        parents, kept = paths.tree.parents, set[int]()
        for node in beam:
            while node > 0:
                kept.add(node)
                node = parents[node]
        return paths.finish(kept)
