"""Typical acceptance: what the target does not find unlikely will do."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree, Verifier
from draftwood.base.validators import probability
from draftwood.laws.proposals import ANY_LAW
from draftwood.strategies.verifiers.batched.on_device import judges_as
from draftwood.strategies.verifiers.batched.targets import Targets, on_the_host, stacked
from draftwood.strategies.verifiers.batched.tree_rows import TreeRows


@attrs.frozen
class Typical(Verifier):
    """Accepts a token x where T(x) > min(epsilon, delta exp(-entropy of T)), and takes the longest path.

    Of paths of one length the likeliest under the target is taken. The token after it is the target's
    most likely one: Medusa's first token, which is always accepted. Nothing is drawn, so the emitted
    tokens do not have the target's law: the probability of a single sequence of 3 tokens is off by 0.24 to
    0.77 (chain of 2, 8 toy models of 3 tokens). At temperature 0 it is the longest greedy match.

    Cost: one pass over `[nodes, vocab]` and one transfer to the host; on a GPU one for all rows.
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
        rank = ranks(parents.tolist(), chances.log().tolist(), accepted)
        last = max(range(len(tree)), key=lambda node: rank[node])
        extra = int(target[last].argmax())
        return Outcome.of(tree, tree.path(last), extra=extra, bonus=not tree.children(last))

    def verify_rows(
        self, trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
    ) -> list[Outcome]:
        if not judges_as(self, Typical) or on_the_host(target_probs):
            return super().verify_rows(trees, target_probs, rngs)
        return typical_rows(self, TreeRows.of(trees), target_probs)


def typical_rows(rule: Typical, trees: TreeRows, target_probs: Targets) -> list[Outcome]:
    """Returns the outcomes of `rule` for every row, with one wait for all."""
    nodes = trees.tokens.shape[1]
    target = stacked(target_probs, nodes)
    parents, tokens = trees.on(target.device)
    bars = (rule.delta * torch.exp(-torch.special.entr(target).sum(-1))).clamp(max=rule.epsilon)
    # The number of a token's probability among all of its row.
    chances = target.flatten(1).gather(1, parents * target.shape[-1] + tokens)
    found = torch.stack(
        [chances.log().double(), (chances > bars.gather(1, parents)).double(), target.argmax(-1).double()]
    )
    worth, accepted, best = found.cpu().numpy()
    paths = []
    for row, count in enumerate(trees.counts.tolist()):
        above = trees.parents[row, 1:count].tolist()
        rank = ranks(above, worth[row, 1:count].tolist(), accepted[row, 1:count].tolist())
        path = [max(range(count), key=rank.__getitem__)]
        while path[-1]:
            path.append(above[path[-1] - 1])
        paths.append(path[::-1])
    return trees.outcomes(paths, [int(best[row, path[-1]]) for row, path in enumerate(paths)])


def ranks(
    parents: Sequence[int], worth: Sequence[float], accepted: Sequence[float]
) -> list[tuple[int, float]]:
    """Accepted tokens and log-likelihood of the path to every node; (-1, 0) where one is not accepted.

    All arguments are of the nodes below the root: their parents, the logarithms of their probabilities, and
    whether their parents accept them.
    """
    rank = [(0, 0.0)]
    for parent, gain, lives in zip(parents, worth, accepted, strict=True):
        depth, likelihood = rank[parent]
        rank.append((depth + 1, likelihood + gain) if lives and depth >= 0 else (-1, 0.0))
    return rank
