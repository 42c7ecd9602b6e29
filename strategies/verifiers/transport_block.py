"""Block verification of the path that the optimal rule for independent siblings proposes."""

from __future__ import annotations

import attrs
from jaxtyping import Float
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree, Verifier, WithReplacement
from draftwood.laws.proposals import check_distribution
from draftwood.strategies.verifiers.optimal_iid import Selection
from draftwood.strategies.verifiers.residual import Candidate, Residual, SiblingLaw


@attrs.frozen
class TransportBlock(Verifier):
    """Proposes one child a level by the optimal law for its siblings, then verifies that path as a block.

    At a node of allowance a (see `Residual`) the optimal selection law m for k draws against a T proposes
    one child; its allowance is min(1, a T(x) / m(x)), and so on down to a leaf. Since m is the law of the
    proposed token whatever else was drawn, the path is a chain drafted by the laws m, and block
    verification of it, from the leaf up, keeps the target's law.

    On a chain this is block verification and over one level `OptimalIID`, both the best there is. Of the
    gap between recursive rejection and the optimum (over toy models of 2 and 3 tokens) it closes 70 % on
    trees with 2 children at the root and 1 below each, 74 % with 2 and 2, 58 % with 3 and 1; `OptimalIID`
    closes 40, 64 and 49 %, traversal verification 35, 16 and 16 %. A child that was not proposed is never
    looked at again, which is what is left to gain.

    Cost: as `OptimalIID`, for one path from the root to a leaf.
    Source: draftwood. Greedy multi-path block verification (arXiv 2602.16961) also verifies a chosen path
    as a block; UniVer (arXiv 2605.04543) also transports against a target scaled by the path's allowance.
    """

    laws = frozenset({WithReplacement})
    adaptive = False
    source = "draftwood"

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        tokens = tree.tokens.tolist()
        path, tried = [0], list[Candidate]()
        levels = [Residual.of(_row(target_probs[0]))]
        while children := tree.children(path[-1]):
            here = levels[-1]
            draft = tree.proposals[path[-1]].conditional(0, ())
            check_distribution(draft, "The draft distribution of WithReplacement")
            selection = Selection.optimal(here.weights, _row(draft), len(children))
            proposed = selection.propose([tokens[child] for child in children], rng)
            if proposed is None:
                break
            candidate = Candidate(proposed, tokens[children[proposed]], SiblingLaw(selection.law(len(draft))))
            chance = here.chance(candidate)
            if chance == 0:
                here.reject(candidate)
                break
            path.append(children[proposed])
            tried.append(candidate)
            levels.append(Residual.of(_row(target_probs[path[-1]]), chance))
        while not rng.accept(levels[-1].allowance):
            path.pop()
            levels.pop()
            levels[-1].reject(tried.pop())
        extra = rng.choose(levels[-1].weights)
        return Outcome.of(tree, path, extra=extra, bonus=not tree.children(path[-1]))


def _row(p: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
    """`p` in float64, summing to 1."""
    p = p.double()
    return p / p.sum()
