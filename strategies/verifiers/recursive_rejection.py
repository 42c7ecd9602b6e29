"""Recursive rejection: one rule for every proposal law."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree
from draftwood.proposals import Proposal
from draftwood.strategies.verifiers.device_forms import REJECTION
from draftwood.strategies.verifiers.on_device import rows_on_device
from draftwood.strategies.verifiers.rejection import RejectionVerifier
from draftwood.strategies.verifiers.residual import DrawnOrder, SiblingOrder


@attrs.frozen
class RecursiveRejection(RejectionVerifier):
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

    source = "RSD, theorem 3.1; DySpec, algorithm 3"

    def sibling_order(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> SiblingOrder:
        return DrawnOrder(tokens, proposal)

    def verify_rows(
        self, trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
    ) -> list[Outcome]:
        # Somebody's variant of this class may change any step, and the kernel does not know of it.
        if type(self) is not RecursiveRejection:
            return super().verify_rows(trees, target_probs, rngs)
        return rows_on_device(self, trees, target_probs, rngs, form=REJECTION)
