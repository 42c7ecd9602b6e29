"""Traversal verification: the tree judged from its leaves up, siblings as they were drawn."""

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
class Traversal(TraversalVerifier):
    """Judges a node after all below it has failed, siblings in drawn order (see `TraversalVerifier`).

    On a chain this is block verification, the best there is on one path.

    Cost: O(vocab) a node that is visited, in the worst case every node of the tree.
    Source: traversal verification, arXiv 2505.12398; block verification, arXiv 2403.10444.
    """

    source = "Traversal verification, arXiv 2505.12398"

    def sibling_order(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> SiblingOrder:
        return DrawnOrder(tokens, proposal)

    def verify_rows(
        self, trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
    ) -> list[Outcome]:
        # Somebody's variant of this class may change any step, and the kernel does not know of it.
        if type(self) is not Traversal:
            return super().verify_rows(trees, target_probs, rngs)
        return rows_on_device(self, trees, target_probs, rngs, form=TRAVERSAL)
