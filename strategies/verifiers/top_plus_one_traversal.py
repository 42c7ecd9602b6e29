"""Traversal verification over the most likely tokens and one drawn from the rest."""

from __future__ import annotations

import attrs

from draftwood.strategies.verifiers.orders.drawn_first import DrawnFirst
from draftwood.strategies.verifiers.walk import TreeWalk


@attrs.frozen
class TopPlusOneTraversal(TreeWalk):
    """Judges a node after all below it has failed; of siblings, the drawn one first and then the fixed ones.

    Every node divides its allowance by the optimal transport for its children against the target scaled by
    that allowance (see `DrawnFirst`). So it is `TopPlusOne` where no child has children, and block
    verification on a chain. That is the framework of UniVer, for the drafts of Hu et al.; UniVer's own text
    could not be read, only its abstract and readers' notes.

    Cost: O(vocab) a node that is visited, in the worst case every node of the tree.
    Source: draftwood; UniVer (arXiv 2605.04543) as its abstract describes it; Hu et al. 2025 (arXiv
    2502.18779); traversal verification, arXiv 2505.12398.
    """

    order: DrawnFirst = attrs.field(factory=DrawnFirst, init=False, repr=False)
    leaf_first: bool = attrs.field(default=True, init=False, repr=False)
    source = "UniVer (2605.04543), by its abstract; Hu et al. 2025 (2502.18779)"
