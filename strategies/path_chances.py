"""The chance of each node of a tree to be on the accepted path."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from draftwood import InvalidInput, Randomness, TokenTree
from draftwood.strategies.verifiers.residual import Residual
from draftwood.strategies.verifiers.walk import TreeWalk


def path_chances(
    verifier: TreeWalk,
    tree: TokenTree,
    target_probs: Float[Tensor, "nodes vocab"],
    rng: Randomness,
) -> NDArray[np.float64]:
    """The chance of every node of `tree` to be on the path that `verifier` accepts.

    What a traversal verifier leaves to chance is whether a node stays whose children have all failed. So
    the chances follow from one walk, and their sum is the tokens that a round of this tree yields in the
    mean, its last one counted by the root. A verifier that draws a time of arrival draws it from `rng`.

    Args:
        verifier: a leaf-first walk, which says in which order siblings are tried.
        tree: of at least its root.
        target_probs: the target's distribution after each node.
        rng: a verification stream.

    Returns:
        float64 `[nodes]`; 1 for the root.

    Raises:
        InvalidInput: `verifier` walks from the root down.

    Source: draftwood; the walk is traversal verification's (arXiv 2505.12398).
    """
    if not verifier.leaf_first:
        raise InvalidInput(
            f"{verifier} walks from the root down; give a leaf-first walk, such as Traversal()."
        )
    tokens = tree.tokens.tolist()
    chances = np.zeros(len(tree))

    def settle(node: int, allowance: float, visited: float) -> float:
        """The chance that a node which is visited, itself with the chance `visited`, is on the path."""
        residual, failed = Residual.of(target_probs[node], allowance), 1.0
        if children := tree.children(node):
            tries = verifier.order.tries([tokens[child] for child in children], tree.proposals[node], rng)
            while (candidate := tries.next(residual)) is not None:
                if (allowed := residual.chance(candidate)) > 0:
                    child = children[candidate.index]
                    failed *= 1 - settle(child, allowed, visited * failed)
                residual.reject(candidate)
        accepted = 1 - failed * (1 - residual.allowance)
        chances[node] = visited * accepted
        return accepted

    settle(0, 1.0, 1.0)
    return chances
