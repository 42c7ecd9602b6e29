"""Traversal verification over siblings that are judged as one set."""

from __future__ import annotations

import attrs

from draftwood.strategies.verifiers.orders.race_order import RaceOrder
from draftwood.strategies.verifiers.walk import TreeWalk


@attrs.frozen
class RaceTraversal(TreeWalk):
    """`Traversal` that looks at all siblings of a node at once (see `RaceOrder`).

    Siblings drawn without replacement, and sets drawn at a fixed time, are put in the order of what the
    target wants more than the draft offers, with allowances that account for the order. Siblings of other
    laws are tried as drawn. Adaptive trees are refused; plain `Traversal` supports them.

    Cost: for each visited node of K > 1 children some 20 passes over the vocabulary, and 10 K operations for
    each of the tokens that matter there, in loops that are compiled at the first node. On a GPU kernels work
    out all nodes, level by level (`tree_race`). What they do not know, such as more than 16 siblings, is
    fetched to the host for all rows at once.

    Source: draftwood; the traversal is arXiv 2505.12398's. That draws without replacement are the first of
    exponential clocks is the Gumbel-max trick. ERSD (arXiv 2504.15475) means another method by the name.
    """

    order: RaceOrder = attrs.field(factory=RaceOrder, init=False, repr=False)
    leaf_first: bool = attrs.field(default=True, init=False, repr=False)
    source = "draftwood"
