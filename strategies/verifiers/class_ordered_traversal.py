"""Traversal verification over siblings in class order."""

from __future__ import annotations

import attrs

from draftwood.strategies.verifiers.orders.class_order import ClassOrder
from draftwood.strategies.verifiers.walk import TreeWalk


@attrs.frozen
class ClassOrderedTraversal(TreeWalk):
    """`Traversal` that tries under-proposed siblings first (see `ClassOrder`).

    Siblings drawn without replacement are put in order; siblings of other laws are tried as drawn. Adaptive
    trees are refused; plain `Traversal` supports them.

    Cost: several passes over the vocabulary for every pair of siblings that is visited.

    Source: draftwood; the traversal is arXiv 2505.12398's.
    """

    order: ClassOrder = attrs.field(factory=ClassOrder, init=False, repr=False)
    leaf_first: bool = attrs.field(default=True, init=False, repr=False)
    source = "draftwood"
