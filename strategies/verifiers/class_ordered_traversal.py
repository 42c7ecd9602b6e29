"""Traversal verification over siblings in class order."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from draftwood import Randomness
from draftwood.proposals import Proposal
from draftwood.strategies.verifiers.class_order import class_order
from draftwood.strategies.verifiers.leaf_first import TraversalVerifier
from draftwood.strategies.verifiers.residual import SiblingOrder


@attrs.frozen
class ClassOrderedTraversal(TraversalVerifier):
    """`Traversal` that tries under-proposed siblings first (see `ClassOrder`).

    Siblings drawn without replacement are put in order; those of other laws are tried as drawn. Adaptive
    trees are refused; plain `Traversal` serves them.

    Cost: about 15 passes over the vocabulary for every pair of siblings that is visited.

    Source: draftwood; the traversal is arXiv 2505.12398's.
    """

    adaptive = False
    source = "draftwood"

    def sibling_order(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> SiblingOrder:
        return class_order(tokens, proposal, rng)
