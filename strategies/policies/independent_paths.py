"""SpecTr's independent paths."""

from __future__ import annotations

import attrs

from draftwood import Growing, Randomness, TreePolicy, WithReplacement
from draftwood.base.validators import at_least
from draftwood.strategies.policies.static_tree import StaticTree


@attrs.frozen
class IndependentPaths(TreePolicy):
    """`paths` chains of `length` tokens under the root, each drawn independently from the draft.

    The root has `paths` children drawn with replacement, and every node below has one. Paths that begin
    alike stay apart: merging equal siblings would give one node the children of several, whose number then
    tells of tokens that were drawn.

    Source: SpecTr, section 3 (arXiv 2310.15141): K independent drafts of length L.
    """

    paths: int = attrs.field(default=4, validator=at_least(1))
    length: int = attrs.field(default=4, validator=at_least(1))
    laws = frozenset({WithReplacement})
    independent_paths = True
    source = "SpecTr, section 3"

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return self.paths > 1

    def grow(self, root: int, rng: Randomness) -> Growing:
        shape = [(path,) + (0,) * below for path in range(self.paths) for below in range(self.length)]
        return StaticTree(shape, WithReplacement).grow(root, rng)
