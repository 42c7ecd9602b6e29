"""Traversal verification: the tree judged leaf first, siblings as they were drawn."""

from __future__ import annotations

import attrs

from draftwood.strategies.verifiers.orders.sibling_order import DrawnOrder
from draftwood.strategies.verifiers.walk import TreeWalk


@attrs.frozen
class Traversal(TreeWalk):
    """Judges a node after all below it has failed, siblings in drawn order (see `TreeWalk`).

    On a chain this is block verification, the best there is on one path.

    Cost: O(vocab) a node that is visited, in the worst case every node of the tree.
    Source: traversal verification, arXiv 2505.12398; block verification, arXiv 2403.10444.
    """

    order: DrawnOrder = attrs.field(factory=DrawnOrder, init=False, repr=False)
    leaf_first: bool = attrs.field(default=True, init=False, repr=False)
    source = "Traversal verification, arXiv 2505.12398"
