"""Recursive rejection: one rule for all four proposal laws."""

from __future__ import annotations

import attrs
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree, Verifier
from draftwood.proposals import ALL_LAWS, Proposal, check_distribution


@attrs.frozen
class RecursiveRejection(Verifier):
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

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        tokens = tree.tokens.tolist()
        path = [0]
        while True:
            node = path[-1]
            children = tree.children(node)
            target = target_probs[node]
            accepted, target = self._judge(
                [tokens[child] for child in children], tree.proposals.get(node), target, rng
            )
            if accepted is None:
                return Outcome.of(tree, path, extra=rng.choose(target), bonus=not children)
            path.append(children[accepted])

    @staticmethod
    def _judge(
        tokens: list[int], proposal: Proposal | None, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        """Place of the accepted sibling, or None, and what is left of the target."""
        earlier: list[int] = []
        for k, token in enumerate(tokens):
            assert proposal is not None
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
