"""Recursive rejection over siblings in class order."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from draftwood import Randomness
from draftwood.proposals import Proposal
from draftwood.strategies.verifiers.class_order import class_order
from draftwood.strategies.verifiers.rejection import RejectionVerifier
from draftwood.strategies.verifiers.residual import SiblingOrder


@attrs.frozen
class ClassOrderedRejection(RejectionVerifier):
    """Recursive rejection that tries under-proposed siblings first (see `ClassOrder`).

    Siblings drawn without replacement are put in class order; those of other laws are tried as drawn.
    Adaptive trees are refused; plain `RecursiveRejection` serves them.

    Cost: about 15 passes over the vocabulary for every pair of siblings on the accepted path.
    Source: draftwood; RSD, theorem 3.1, allows any order whose laws are known.
    """

    adaptive = False
    source = "draftwood"

    def sibling_order(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> SiblingOrder:
        return class_order(tokens, proposal, rng)
