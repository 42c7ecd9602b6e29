"""The walk that all token-wise verifiers share: node after node, from the root down."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from torch import Tensor

from draftwood import Outcome, Randomness, TokenTree, Verifier
from draftwood.laws.proposals import Proposal


class NodeWise(Verifier):
    """At every node `judge` accepts one child or none; an accepted one is final, and the walk goes on there.

    A subclass is lossless when its `judge` is: over the children's law, the token of the accepted child,
    or one drawn from what is left of the target, must have the target's law.
    """

    @abstractmethod
    def judge(
        self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness
    ) -> tuple[int | None, Tensor]:
        """Judge the children of one node.

        Args:
            tokens: theirs, in drawn order; at least one.
            proposal: the law they were drawn from.
            target: the target's distribution after the node, `[vocab]`; not to be written to.
            rng: the verification stream.

        Returns:
            The index of the accepted child in `tokens` and any tensor, or None and the weights
            `[vocab]` from which the extra token is drawn.
        """

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        tokens = tree.tokens.tolist()
        path = [0]
        while children := tree.children(path[-1]):
            node = path[-1]
            accepted, left = self.judge(
                [tokens[child] for child in children], tree.proposals[node], target_probs[node], rng
            )
            if accepted is None:
                return Outcome.of(tree, path, extra=rng.choose(left), bonus=False)
            path.append(children[accepted])
        return Outcome.of(tree, path, extra=rng.choose(target_probs[path[-1]]), bonus=True)
