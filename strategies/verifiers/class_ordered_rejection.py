"""Recursive rejection over siblings in class order."""

from __future__ import annotations

import attrs

from draftwood.strategies.verifiers.orders.class_order import ClassOrder
from draftwood.strategies.verifiers.walk import TreeWalk


@attrs.frozen
class ClassOrderedRejection(TreeWalk):
    """Recursive rejection that tries under-proposed siblings first (see `ClassOrder`).

    Siblings drawn without replacement are put in class order; siblings of other laws are tried as drawn.
    Adaptive trees are refused; plain `RecursiveRejection` supports them.

    Cost: several passes over the vocabulary for every pair of siblings on the accepted path.
    Source: draftwood; RSD, theorem 3.1, allows any order whose laws are known.
    """

    order: ClassOrder = attrs.field(factory=ClassOrder, init=False, repr=False)
    leaf_first: bool = attrs.field(default=False, init=False, repr=False)
    source = "draftwood"
