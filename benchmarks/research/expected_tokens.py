"""Expected tokens of a verifier over all trees of a policy, each node drawn when the verifier looks at it.

Most nodes of a tree are never looked at, so this visits far fewer outcomes than tree after tree would.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import torch
from torch import Tensor

from draftwood import Outcome, Proposal, Randomness, TokenTree, Verifier
from draftwood.testing import NextTokenModel, WeightedTree, enumerate_outcomes
from draftwood.testing.models.lazy_trees import LazyTargets, LazyTree, TreeLaw

COARSE = 0.5
"""Between the logarithms of times of arrival: weights sum to 1 within 1e-5."""


@attrs.define(eq=False)
class Possible(TreeLaw):
    """Trees of one shape that agree in every token seen so far; what a look at one more node would tell."""

    trees: Sequence[WeightedTree]
    _looks: dict[int, dict[int, Possible]] = attrs.field(factory=dict, init=False)

    @property
    def shape(self) -> TokenTree:  # type: ignore[override]
        return self.trees[0].tree

    @property
    def weight(self) -> float:
        return sum(one.weight for one in self.trees)

    def before(self, node: int) -> Sequence[int]:
        return self.shape.path(node)[:-1]

    def law(self, node: int, seen: Mapping[int, int]) -> tuple[Sequence[int], Tensor]:
        possible = self._after(seen)._look(node)
        return list(possible), torch.tensor(
            [trees.weight for trees in possible.values()], dtype=torch.float64
        )

    def proposal(self, node: int, seen: Mapping[int, int]) -> Proposal:
        return self._after(seen).shape.proposals[node]

    def _after(self, seen: Mapping[int, int]) -> Possible:
        """Returns the optimum with the tokens in `seen`, looked at in their order."""
        left = self
        for node, token in seen.items():
            left = left._look(node)[token]
        return left

    def _look(self, node: int) -> dict[int, Possible]:
        """Returns the optimum with each token that `node` may hold."""
        if node not in self._looks:
            by_token: dict[int, list[WeightedTree]] = {}
            for one in self.trees:
                by_token.setdefault(int(one.tree.tokens[node]), []).append(one)
            self._looks[node] = {token: Possible(trees) for token, trees in by_token.items()}
        return self._looks[node]


def by_shape(trees: Sequence[WeightedTree]) -> list[Possible]:
    """The trees of every shape together."""
    shapes: dict[tuple[int, ...], list[WeightedTree]] = {}
    for one in trees:
        shapes.setdefault(tuple(one.tree.parents.tolist()), []).append(one)
    return [Possible(alike) for alike in shapes.values()]


def expected_tokens(shapes: Sequence[Possible], verifier: Verifier, *, target: NextTokenModel) -> float:
    """Mean number of tokens that a round of `verifier` emits over the trees, as by `one_round_law`."""
    total = 0.0
    for possible in shapes:

        def verify(rng: Randomness, possible: Possible = possible) -> int:
            tree = LazyTree(possible, rng)
            outcome: Outcome = verifier.verify(tree, LazyTargets(tree, target.probs), rng)  # type: ignore[arg-type]
            return len(outcome.emitted)

        total += possible.weight * sum(
            weight * emitted
            for weight, emitted in enumerate_outcomes(verify, budget=10**7, arrival_step=COARSE)
        )
    return total
