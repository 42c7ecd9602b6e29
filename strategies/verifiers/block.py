"""Block verification: the best rule for a chain."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree
from draftwood.proposals import Proposal
from draftwood.strategies.verifiers.device_forms import TRAVERSAL
from draftwood.strategies.verifiers.leaf_first import TraversalVerifier
from draftwood.strategies.verifiers.on_device import rows_on_device
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

    def verify_rows(
        self, trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
    ) -> list[Outcome]:
        # Somebody's variant of this class may change any step, and the kernel does not know of it.
        if type(self) is not Block:
            return super().verify_rows(trees, target_probs, rngs)
        return rows_on_device(self, trees, target_probs, rngs, form=TRAVERSAL)
