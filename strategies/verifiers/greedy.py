"""Longest greedy match."""

from __future__ import annotations

import attrs
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree, Verifier
from draftwood.proposals import ANY_LAW


@attrs.frozen
class Greedy(Verifier):
    """Accepts the path that the target's most likely tokens follow; serves temperature 0 alone.

    Cost: one argmax over `[nodes, vocab]` and one transfer to the host.
    Source: DynaTree, section 3.5; Stern et al. 2018.
    """

    laws = ANY_LAW
    greedy = True
    source = "DynaTree, section 3.5"

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        best = target_probs.argmax(-1).tolist()
        tokens = tree.tokens.tolist()
        path = [0]
        while True:
            likeliest = best[path[-1]]
            children = tree.children(path[-1])
            match = next((child for child in children if tokens[child] == likeliest), None)
            if match is None:
                return Outcome.of(tree, path, extra=likeliest, bonus=not children)
            path.append(match)
