"""Recursive rejection at a node, in any order of its siblings whose laws are known."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from draftwood import Randomness
from draftwood.proposals import ANY_LAW, Proposal
from draftwood.strategies.verifiers.node_wise import NodeWise
from draftwood.strategies.verifiers.residual import Residual, SiblingOrder


class RejectionVerifier(NodeWise):
    """Tries siblings one by one, each against what those before it left of the target.

    A subclass says in which order. Rejection may take any whose laws are known (RSD, theorem 3.1).
    """

    laws = ANY_LAW

    @abstractmethod
    def sibling_order(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> SiblingOrder:
        """The order in which the children of a node are tried: `tokens` as drawn, by `proposal`."""

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        order, residual = self.sibling_order(tokens, proposal, rng), Residual.of(target)
        while candidate := order.next(residual):
            chance = residual.chance(candidate)
            if chance > 0 and rng.accept(chance):
                return candidate.index, target
            residual.reject(candidate)
        return None, residual.weights
