"""Verification from the leaves up: subtrees are settled before the residual above them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import attrs
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree, Verifier
from draftwood.proposals import ANY_LAW, Proposal
from draftwood.strategies.verifiers.residual import Candidate, Residual, SiblingOrder


class TraversalVerifier(Verifier):
    """Goes down to the first leaf and back up, so that a node is judged after all below it has failed.

    A child x tried by law p at a node of allowance a gets the allowance min(1, a T(x) / p(x)); its subtree
    is settled first. If nothing there is accepted, the node goes on with its residual (see `Residual`).
    A node whose children have all failed is accepted with the allowance that is left. A subclass says in
    which order siblings are tried.

    Source: traversal verification, arXiv 2505.12398; block verification, arXiv 2403.10444.
    """

    laws = ANY_LAW

    @abstractmethod
    def sibling_order(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> SiblingOrder:
        """The order in which the children of a node are tried: `tokens` as drawn, by `proposal`."""

    def node_streams(self, tree: TokenTree, rng: Randomness) -> Mapping[int, Randomness]:
        """Streams of their own for some nodes, started from `rng`; by default none has one."""
        return {}

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        tokens, streams = tree.tokens.tolist(), self.node_streams(tree, rng)

        def visit(node: int, allowance: float) -> _Visit:
            order = None
            if children := tree.children(node):
                order = self.sibling_order(
                    [tokens[child] for child in children], tree.proposals[node], streams.get(node, rng)
                )
            return _Visit(node, order, Residual.of(target_probs[node], allowance))

        visits = [visit(0, 1.0)]
        while True:
            here = visits[-1]
            here.candidate = candidate = here.order.next(here.residual) if here.order else None
            if candidate is not None:
                chance = here.residual.chance(candidate)
                child = tree.children(here.node)[candidate.index]
                if chance > 0 and tree.children(child):
                    visits.append(visit(child, chance))
                elif chance > 0 and rng.accept(chance):
                    # What the target has after a leaf matters where it is accepted alone.
                    path = [*(visited.node for visited in visits), child]
                    return Outcome.of(tree, path, extra=rng.choose(target_probs[child]), bonus=True)
                else:
                    here.residual.reject(candidate)
            elif rng.accept(here.residual.allowance):
                extra = rng.choose(here.residual.weights)
                path = [visited.node for visited in visits]
                return Outcome.of(tree, path, extra=extra, bonus=here.order is None)
            else:
                visits.pop()
                above = visits[-1]
                assert above.candidate is not None
                above.residual.reject(above.candidate)


@attrs.define(eq=False)
class _Visit:
    """A node on the path from the root, and the child that is being tried there."""

    node: int
    order: SiblingOrder | None
    residual: Residual
    candidate: Candidate | None = None
