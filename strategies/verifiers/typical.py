"""Typical acceptance: what the target does not find unlikely will do."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree, Verifier
from draftwood.proposals import ANY_LAW
from draftwood.validators import probability


@attrs.frozen
class Typical(Verifier):
    """Accepts a token x where T(x) > min(epsilon, delta exp(-entropy of T)), and takes the longest path.

    Of paths of one length the likeliest under the target is taken. The token after it is the target's
    most likely one: Medusa's first token, which is always accepted. Nothing is drawn, so the emitted
    tokens do not have the target's law: the probability of a single sequence of 3 tokens is off by 0.24 to
    0.77 (chain of 2, 8 toy models of 3 tokens). At temperature 0 it is the longest greedy match.

    Cost: one pass over `[nodes, vocab]` and one transfer to the host.
    Source: Medusa (arXiv 2401.10774), section 2.3.1, with the authors' settings as defaults.
    """

    epsilon: float = attrs.field(default=0.09, validator=probability)
    delta: float = attrs.field(default=0.3, validator=probability)
    laws = ANY_LAW
    lossless = False
    source = "Medusa, section 2.3.1"

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        target = target_probs[: len(tree)]
        bars = self.delta * torch.exp(-torch.special.entr(target).sum(-1))
        parents, tokens = tree.parents[1 : len(tree)], tree.tokens[1 : len(tree)]
        chances = target[parents, tokens]
        accepted = (chances > bars.clamp(max=self.epsilon)[parents]).tolist()
        above, worth = parents.tolist(), chances.log().tolist()
        rank = [(0, 0.0)]  # accepted tokens and log-likelihood of the path to every node
        for parent, gain, lives in zip(above, worth, accepted, strict=True):
            depth, likelihood = rank[parent]
            rank.append((depth + 1, likelihood + gain) if lives and depth >= 0 else (-1, 0.0))
        last = max(range(len(tree)), key=lambda node: rank[node])
        extra = int(target[last].argmax())
        return Outcome.of(tree, tree.path(last), extra=extra, bonus=not tree.children(last))
