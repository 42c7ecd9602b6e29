"""Block verification of one path of a tree that is chosen by a known law."""

from __future__ import annotations

from typing import Protocol

from jaxtyping import Float
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree
from draftwood.strategies.verifiers.residual import Candidate, Residual, SiblingLaw


class PathChoice(Protocol):
    """Chooses a path from the root down; the law of every step is known before the children are seen."""

    def child(self, node: int, here: Residual) -> tuple[int, SiblingLaw] | None:
        """Returns the chosen child of `node` and the law of its token; None ends the path.

        Args:
            node: the last of the path; it has children.
            here: the target at the node with its allowance.
        """
        ...


def verify_as_block(
    tree: TokenTree, target_probs: Float[Tensor, "nodes vocab"], choice: PathChoice, rng: Randomness
) -> Outcome:
    """Returns the outcome of block verification of the path that `choice` takes.

    The token of every step has a known law, given the tokens above it. So the path is a chain that was
    drafted by these laws, and block verification from its end up keeps the target's law.

    Source: block verification, arXiv 2403.10444, algorithm 2.
    """
    path, tried = [0], list[Candidate]()
    levels = [Residual.of(row64(target_probs[0]))]
    while tree.children(path[-1]):
        here = levels[-1]
        chosen = choice.child(path[-1], here)
        if chosen is None:
            break
        child, law = chosen
        candidate = Candidate(child, int(tree.tokens[child]), law)
        chance = here.chance(candidate)
        if chance == 0:
            here.reject(candidate)
            break
        path.append(child)
        tried.append(candidate)
        levels.append(Residual.of(row64(target_probs[child]), chance))
    while not rng.accept(levels[-1].allowance):
        path.pop()
        levels.pop()
        levels[-1].reject(tried.pop())
    extra = rng.choose(levels[-1].weights)
    # A step may go on from a node with the same tokens above it as the one before.
    return Outcome.of(tree, tree.path(path[-1]), extra=extra, bonus=not tree.children(path[-1]))


def row64(p: Float[Tensor, " vocab"]) -> Float[Tensor, " vocab"]:
    """Returns `p` in float64, summing to 1."""
    p = p.double()
    return p / p.sum()
