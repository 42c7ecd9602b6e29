"""Traversal verification over siblings in class order."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from draftwood import Randomness
from draftwood.proposals import Proposal
from draftwood.strategies.verifiers.class_order import in_class_order
from draftwood.strategies.verifiers.residual import SiblingOrder
from draftwood.strategies.verifiers.traversal import Traversal


@attrs.frozen
class ClassOrderedTraversal(Traversal):
    """`Traversal` that tries under-proposed siblings first (see `ClassOrder`).

    Siblings drawn without replacement are put in class order; those of other laws are tried as drawn.

    Attributes:
        phantoms: what adaptive trees (DySpec) need, because there a sibling's existence tells of the
            ones before it; on other trees the full window is stronger.

    Source: draftwood; the traversal is arXiv 2505.12398's.
    """

    phantoms: bool = False
    source = "draftwood"

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.phantoms

    def siblings(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> SiblingOrder:
        return in_class_order(tokens, proposal, rng, self.phantoms)
