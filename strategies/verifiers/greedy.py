"""Longest greedy match."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree, Verifier
from draftwood.laws.proposals import ANY_LAW
from draftwood.strategies.verifiers.batched.on_device import judges_as
from draftwood.strategies.verifiers.batched.targets import Targets, likeliest, most_likely, on_the_host
from draftwood.strategies.verifiers.batched.tree_rows import TreeRows


@attrs.frozen
class Greedy(Verifier):
    """Accepts the path that the target's most likely tokens follow; only for temperature 0.

    Cost: on a CPU one argmax over the vocabulary a node of the accepted path; elsewhere one over the nodes
    of all rows, and one transfer to the host.
    Source: DynaTree, section 3.5; Stern et al. 2018.
    """

    laws = ANY_LAW
    greedy = True
    source = "DynaTree, section 3.5"

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        return followed(tree, target_probs)

    def verify_rows(
        self, trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
    ) -> list[Outcome]:
        if not judges_as(self, Greedy) or on_the_host(target_probs):
            return super().verify_rows(trees, target_probs, rngs)
        return greedy_rows(TreeRows.of(trees), target_probs)


def followed(tree: TokenTree, target_probs: Tensor) -> Outcome:
    """The outcome of the path that the target's most likely tokens follow; of equal children the first."""
    tokens, path = tree.tokens.tolist(), [0]
    while True:
        best, match = likeliest(target_probs, path[-1]), None
        children = tree.children(path[-1])
        for child in children:
            if tokens[child] == best:
                match = child
                break
        if match is None:
            accepted = [tokens[node] for node in path]
            return Outcome(path, accepted, extra=best, bonus=not children, drafted=tree.size - 1)
        path.append(match)


def greedy_rows(trees: TreeRows, target_probs: Targets) -> list[Outcome]:
    """The longest greedy match of every row, with one wait for all."""
    best = most_likely(target_probs, trees.tokens.shape[1])
    paths = trees.follow(trees.tokens == np.take_along_axis(best, trees.parents.clip(min=0), axis=1))
    return trees.outcomes(paths, [int(best[row, path[-1]]) for row, path in enumerate(paths)])
