"""Recursive rejection: one rule for every proposal law."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from torch import Tensor

from draftwood import Randomness
from draftwood.proposals import ALL_LAWS, Proposal, check_distribution
from draftwood.strategies.verifiers.node_wise import NodeWise


@attrs.frozen
class RecursiveRejection(NodeWise):
    """Judges siblings one by one in drawn order, each against what its predecessors left of the target.

    With D = `conditional(k, earlier)`, child x is accepted with probability min(1, T(x) / D(x));
    otherwise T becomes max(T - D, 0), renormalised. This is SpecInfer's multi-round rule for
    `WithReplacement`, the rule of RSD, Sequoia and DySpec for `WithoutReplacement`, the rule of several
    drafters for `PerChild`, and sample-and-match for `Deterministic`.

    Cost: O(vocab) a child of the accepted path's nodes; other nodes are not looked at.
    Source: RSD, theorem 3.1 and algorithm 6; DySpec, algorithm 3 (with a strict test, a bonus token at
    leaves, and T kept when the residual vanishes in floating point).
    """

    laws = ALL_LAWS
    source = "RSD, theorem 3.1; DySpec, algorithm 3"

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        earlier: list[int] = []
        for k, token in enumerate(tokens):
            draft = proposal.conditional(k, earlier)
            if k == 0:
                check_distribution(draft, f"The draft distribution of {type(proposal).__name__}")
            wanted, offered = float(target[token]), float(draft[token])
            if wanted > 0 and rng.accept(wanted / offered if offered > 0 else 1.0):
                return k, target
            residual = (target - draft).clamp_(min=0)
            total = residual.sum()
            if float(total) > 0:
                target = residual / total
            earlier.append(token)
        return None, target
