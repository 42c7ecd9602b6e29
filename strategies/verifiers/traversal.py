"""Traversal verification: subtrees are settled before the residual above them."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree, Verifier
from draftwood.proposals import ALL_LAWS, Proposal
from draftwood.strategies.verifiers.residual import DrawnOrder, Residual, SiblingOrder, Trial


@attrs.frozen
class Traversal(Verifier):
    """Goes down to the first leaf and back up, so that a node is judged after all below it has failed.

    A child x tried by law p at a node of allowance a gets the allowance min(1, a T(x) / p(x)); its subtree
    is settled first. If nothing there is accepted, the node goes on with its residual (see `Residual`).
    A node whose children have all failed is accepted with the allowance that is left. On a chain this is
    block verification, the best there is on one path.

    Cost: O(vocab) a node that is visited, in the worst case every node of the tree.
    Source: traversal verification, arXiv 2505.12398; block verification, arXiv 2403.10444.
    """

    laws = ALL_LAWS
    source = "Traversal verification, arXiv 2505.12398"

    def siblings(self, tokens: Sequence[int], proposal: Proposal, rng: Randomness) -> SiblingOrder:
        """The order in which the children of a node, holding `tokens`, are tried."""
        return DrawnOrder(tokens, proposal)

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        tokens = tree.tokens.tolist()

        def visit(node: int, allowance: float) -> _Visit:
            children = tree.children(node)
            order = None
            if children:
                order = self.siblings([tokens[child] for child in children], tree.proposals[node], rng)
            return _Visit(node, children, order, Residual.of(target_probs[node], allowance))

        visits = [visit(0, 1.0)]
        while True:
            here = visits[-1]
            here.trial = trial = here.siblings.next(here.residual) if here.siblings else None
            if trial is not None:
                chance = here.residual.chance(trial)
                if trial.place is not None and chance > 0:
                    visits.append(visit(here.children[trial.place], chance))
                elif trial.place is None and rng.accept(chance):
                    return Outcome.of(tree, [one.node for one in visits], extra=trial.token, bonus=False)
                else:
                    here.residual.reject(trial)
            elif rng.accept(here.residual.allowance):
                extra = rng.choose(here.residual.weights)
                return Outcome.of(tree, [one.node for one in visits], extra=extra, bonus=not here.children)
            else:
                visits.pop()
                above = visits[-1]
                assert above.trial is not None
                above.residual.reject(above.trial)


@attrs.define(eq=False)
class _Visit:
    """A node on the way down, and the child that is being tried there."""

    node: int
    children: list[int]
    siblings: SiblingOrder | None
    residual: Residual
    trial: Trial | None = None
