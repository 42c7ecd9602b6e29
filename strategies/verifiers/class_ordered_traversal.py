"""Traversal verification over siblings in class order."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree
from draftwood.proposals import Proposal
from draftwood.strategies.verifiers.class_order import class_order
from draftwood.strategies.verifiers.device_forms import CLASS_ORDERED_TRAVERSAL
from draftwood.strategies.verifiers.leaf_first import TraversalVerifier
from draftwood.strategies.verifiers.on_device import rows_on_device
from draftwood.strategies.verifiers.residual import SiblingOrder


@attrs.frozen
class ClassOrderedTraversal(TraversalVerifier):
    """`Traversal` that tries under-proposed siblings first (see `ClassOrder`).

    Siblings drawn without replacement are put in order; those of other laws are tried as drawn. Adaptive
    trees are refused; plain `Traversal` serves them.

    Cost: several passes over the vocabulary for every pair of siblings that is visited.

    Source: draftwood; the traversal is arXiv 2505.12398's.
    """

    adaptive = False
    source = "draftwood"

    def sibling_order(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> SiblingOrder:
        return class_order(tokens, proposal, rng)

    def verify_rows(
        self, trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
    ) -> list[Outcome]:
        # Somebody's variant of this class may change any step, and the kernel does not know of it.
        if type(self) is not ClassOrderedTraversal:
            return super().verify_rows(trees, target_probs, rngs)
        return rows_on_device(self, trees, target_probs, rngs, form=CLASS_ORDERED_TRAVERSAL)
