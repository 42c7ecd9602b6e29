"""Traversal verification: subtrees are settled before the residual above them."""

from __future__ import annotations

import attrs
from jaxtyping import Float
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree, Verifier
from draftwood.proposals import ANY_LAW
from draftwood.strategies.verifiers.residual import DrawnOrder, Residual, SiblingOrder, Trial


@attrs.frozen(eq=False)
class Judged:
    """What is to be judged: a tree, its tokens as a list, and the target's distribution at every node."""

    tree: TokenTree
    tokens: list[int]
    targets: Float[Tensor, "nodes vocab"]
    rng: Randomness

    def below(self, node: int) -> list[int]:
        """The tokens of the children of `node` in drawn order."""
        return [self.tokens[child] for child in self.tree.children(node)]


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

    laws = ANY_LAW
    source = "Traversal verification, arXiv 2505.12398"

    def siblings(self, judged: Judged, node: int) -> SiblingOrder:
        """The order in which the children of `node` are tried."""
        return DrawnOrder(judged.below(node), judged.tree.proposals[node])

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        judged = Judged(tree, tree.tokens.tolist(), target_probs, rng)
        visits = [self._visit(judged, 0, 1.0)]
        while True:
            here = visits[-1]
            here.trial = trial = here.siblings.next(here.residual) if here.siblings else None
            if trial is not None:
                chance = here.residual.chance(trial)
                if chance > 0:
                    child = tree.children(here.node)[trial.place]
                    visits.append(self._visit(judged, child, chance))
                else:
                    here.residual.reject(trial)
            elif rng.accept(here.residual.allowance):
                extra = rng.choose(here.residual.weights)
                path = [one.node for one in visits]
                return Outcome.of(tree, path, extra=extra, bonus=here.siblings is None)
            else:
                visits.pop()
                above = visits[-1]
                assert above.trial is not None
                above.residual.reject(above.trial)

    def _visit(self, judged: Judged, node: int, allowance: float) -> _Visit:
        siblings = self.siblings(judged, node) if judged.tree.children(node) else None
        return _Visit(node, siblings, Residual.of(judged.targets[node], allowance))


@attrs.define(eq=False)
class _Visit:
    """A node on the way down, and the child that is being tried there."""

    node: int
    siblings: SiblingOrder | None
    residual: Residual
    trial: Trial | None = None
