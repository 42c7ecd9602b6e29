"""Block verification: the best rule for a chain."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from draftwood import Randomness
from draftwood.proposals import Proposal
from draftwood.strategies.verifiers.leaf_first import TraversalVerifier
from draftwood.strategies.verifiers.residual import DrawnOrder, SiblingOrder


@attrs.frozen
class Block(TraversalVerifier):
    """Judges a chain as a whole, from its end back to the root: `Traversal` where nothing branches.

    No lossless rule emits more tokens a round on one path (shown there, and measured here against the
    exact optimum).

    Cost: O(vocab) a node.
    Source: block verification, arXiv 2403.10444, algorithm 2.
    """

    branches = False
    source = "Block verification, arXiv 2403.10444, algorithm 2"

    def sibling_order(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> SiblingOrder:
        return DrawnOrder(tokens, proposal)
