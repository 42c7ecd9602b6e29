"""Sample and match: the target speaks first, and the tree follows where it can."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from jaxtyping import Float
from torch import Tensor, float64

from draftwood import Outcome, Randomness, TokenTree
from draftwood.laws.proposals import ANY_LAW, Proposal
from draftwood.strategies.verifiers.batched.matched_rows import matched_rows
from draftwood.strategies.verifiers.batched.on_device import judges_as
from draftwood.strategies.verifiers.batched.targets import on_the_host
from draftwood.strategies.verifiers.batched.tree_rows import TreeRows
from draftwood.strategies.verifiers.node_wise import NodeWise


def match(
    tokens: Sequence[int], target: Float[Tensor, " vocab"], rng: Randomness
) -> tuple[int | None, Float[Tensor, " vocab"]]:
    """One draw from the weights `target` `[vocab]`, looked for among `tokens`.

    Returns:
        The index of the first child that holds the drawn token, and `target`; or None and the weights of
        the tokens that no child holds, from which it is still to be drawn.
    """
    first_index: dict[int, int] = {}
    for index, token in enumerate(tokens):
        first_index.setdefault(token, index)
    distinct = list(first_index)
    chances, left = target[distinct], target.clone()
    left[distinct] = 0
    hit, miss = float(chances.sum(dtype=float64)), float(left.sum(dtype=float64))
    if hit > 0 and rng.accept(hit / (hit + miss)):
        return first_index[distinct[rng.choose(chances)]], target
    return None, left


@attrs.frozen
class SampleAndMatch(NodeWise):
    """Draws a token from the target and goes to the child that holds it; without one it is the extra token.

    The children's law plays no part, so every law and every adaptive tree is verified without loss, even
    one whose law is declared wrongly. A child is accepted with probability T(x), which is the most that a
    fixed child can have. For a drawn child it is wasteful: one child drawn from D is accepted with
    probability sum of D T, against sum of min(D, T) under rejection, which is 1 where D = T.

    Cost: O(vocab) a node of the accepted path; on a GPU a node of all trees, with one wait for all rows.
    Source: SpecInfer's naive sampling, section 4.3 (arXiv 2305.09781).
    """

    laws = ANY_LAW
    source = "SpecInfer, section 4.3 (naive sampling)"

    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        return match(tokens, target, rng)

    def verify_rows(
        self, trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
    ) -> list[Outcome]:
        if not judges_as(self, SampleAndMatch) or on_the_host(target_probs):
            return super().verify_rows(trees, target_probs, rngs)
        outcomes = matched_rows(TreeRows.of(trees), target_probs, rngs)
        return [
            self.verify(tree, targets, rng) if outcome is None else outcome
            for outcome, tree, targets, rng in zip(outcomes, trees, target_probs, rngs, strict=True)
        ]
