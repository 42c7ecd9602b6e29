"""How likely the accepted path is to hold each node of a tree."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from draftwood import Randomness, TokenTree
from draftwood.strategies.verifiers.leaf_first import TraversalVerifier
from draftwood.strategies.verifiers.residual import Residual


def path_chances(
    verifier: TraversalVerifier,
    tree: TokenTree,
    target_probs: Float[Tensor, "nodes vocab"],
    rng: Randomness,
) -> NDArray[np.float64]:
    """The chance of every node of `tree` to be on the path that `verifier` accepts.

    What a traversal verifier leaves to chance is whether a node stays whose children have all failed. So
    the chances follow from one walk, and their sum is the tokens that a round of this tree yields in the
    mean, its last one counted by the root. A verifier that draws a time of arrival draws it from `rng`.

    Args:
        verifier: says in which order siblings are tried.
        tree: of at least its root.
        target_probs: the target's distribution after each node.
        rng: a verification stream.

    Returns:
        float64 `[nodes]`; 1 for the root.

    Source: draftwood; the walk is traversal verification's (arXiv 2505.12398).
    """
    tokens = tree.tokens.tolist()
    chances = np.zeros(len(tree))

    def settle(node: int, allowance: float, visited: float) -> float:
        """The chance that a node which is visited, itself with the chance `visited`, is on the path."""
        residual, failed = Residual.of(target_probs[node], allowance), 1.0
        if children := tree.children(node):
            order = verifier.sibling_order([tokens[child] for child in children], tree.proposals[node], rng)
            while (candidate := order.next(residual)) is not None:
                if (allowed := residual.chance(candidate)) > 0:
                    child = children[candidate.index]
                    failed *= 1 - settle(child, allowed, visited * failed)
                residual.reject(candidate)
        accepted = 1 - failed * (1 - residual.allowance)
        chances[node] = visited * accepted
        return accepted

    settle(0, 1.0, 1.0)
    return chances
