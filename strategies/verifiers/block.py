"""Block verification: the best rule for a chain."""

from __future__ import annotations

import attrs

from draftwood.strategies.verifiers.orders.sibling_order import DrawnOrder
from draftwood.strategies.verifiers.walk import TreeWalk


@attrs.frozen
class Block(TreeWalk):
    """Judges a chain as a whole, from its end back to the root: `Traversal` where nothing branches.

    No lossless rule emits more tokens a round on one path (shown there, and measured here against the
    exact optimum).

    Cost: O(vocab) a node.
    Source: block verification, arXiv 2403.10444, algorithm 2.
    """

    order: DrawnOrder = attrs.field(factory=DrawnOrder, init=False, repr=False)
    leaf_first: bool = attrs.field(default=True, init=False, repr=False)
    branches = False
    source = "Block verification, arXiv 2403.10444, algorithm 2"
