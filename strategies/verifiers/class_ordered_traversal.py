"""Traversal verification over siblings in class order."""

from __future__ import annotations

import attrs

from draftwood.proposals import WithoutReplacement
from draftwood.strategies.verifiers.class_order import ClassOrder
from draftwood.strategies.verifiers.residual import DrawnOrder, SiblingOrder
from draftwood.strategies.verifiers.traversal import Judged, Traversal


@attrs.frozen
class ClassOrderedTraversal(Traversal):
    """`Traversal` that tries under-proposed siblings first (see `ClassOrder`).

    Siblings drawn without replacement are put in order; those of other laws are tried as drawn. Adaptive
    trees are refused; plain `Traversal` serves them.

    Cost: about 15 passes over the vocabulary for every pair of siblings that is visited.

    Source: draftwood; the traversal is arXiv 2505.12398's.
    """

    adaptive = False
    source = "draftwood"

    def siblings(self, judged: Judged, node: int) -> SiblingOrder:
        tokens, proposal = judged.below(node), judged.tree.proposals[node]
        if isinstance(proposal, WithoutReplacement):
            return ClassOrder(tokens, proposal.p, judged.rng)
        return DrawnOrder(tokens, proposal)
