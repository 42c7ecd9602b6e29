"""Recursive rejection: one rule for every proposal law."""

from __future__ import annotations

import attrs

from draftwood.strategies.verifiers.orders.sibling_order import DrawnOrder
from draftwood.strategies.verifiers.walk import TreeWalk


@attrs.frozen
class RecursiveRejection(TreeWalk):
    """Judges siblings one by one in drawn order, each against what its predecessors left of the target.

    With D = `conditional(k, earlier)`, child x is accepted with probability min(1, T(x) / D(x));
    otherwise T becomes max(T - D, 0), renormalised. This is SpecInfer's multi-round rule for
    `WithReplacement`, the rule of RSD, Sequoia and DySpec for `WithoutReplacement`, the rule of several
    drafters for `PerChild`, and sample-and-match for `Deterministic`.

    Cost: O(vocab) a child of the accepted path's nodes; other nodes are not looked at.
    On a GPU one kernel walks the trees of all rows, by the same uniforms.
    Source: RSD, theorem 3.1 and algorithm 6; DySpec, algorithm 3 (with a strict test, a bonus token at
    leaves, and T kept when the residual vanishes in floating point).
    """

    order: DrawnOrder = attrs.field(factory=DrawnOrder, init=False, repr=False)
    leaf_first: bool = attrs.field(default=False, init=False, repr=False)
    source = "RSD, theorem 3.1; DySpec, algorithm 3"
