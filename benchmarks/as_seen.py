"""Trees whose tokens are drawn when a verifier looks at them: the law of a round in far fewer outcomes.

A verifier that accepts the first path has looked at a few nodes, and all the trees that agree there end
alike. So the tokens of a tree are left open, given the tokens seen so far, and a look is one more question
of chance, weighed by the trees that are still possible. The verifier's own code runs unchanged; it must
look at trees as the project's verifiers do: `tree.tokens.tolist()` as a whole, then node by node.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import attrs
import torch
from torch import Tensor

from draftwood import Outcome, Proposal, Randomness, Verifier
from draftwood.testing import ToyModel, WeightedTree, enumerate_outcomes


@attrs.define(eq=False)
class Possible:
    """Trees of one shape that agree in every token seen so far; what a look at one more node would tell."""

    trees: Sequence[WeightedTree]
    _looks: dict[int, tuple[Tensor, list[Possible]]] = attrs.field(factory=dict, init=False)

    @property
    def weight(self) -> float:
        return sum(one.weight for one in self.trees)

    def look(self, node: int) -> tuple[Tensor, list[Possible]]:
        """The weights of the tokens that `node` may hold, and what is possible with each."""
        if node not in self._looks:
            by_token: dict[int, list[WeightedTree]] = {}
            for one in self.trees:
                by_token.setdefault(int(one.tree.tokens[node]), []).append(one)
            found = [Possible(trees) for trees in by_token.values()]
            self._looks[node] = torch.tensor([one.weight for one in found], dtype=torch.float64), found
        return self._looks[node]


def by_shape(trees: Sequence[WeightedTree]) -> list[Possible]:
    """The trees of every shape together."""
    shapes: dict[tuple[int, ...], list[WeightedTree]] = {}
    for one in trees:
        shapes.setdefault(tuple(one.tree.parents.tolist()), []).append(one)
    return [Possible(alike) for alike in shapes.values()]


def expected_as_seen(shapes: Sequence[Possible], verifier: Verifier, *, target: ToyModel) -> float:
    """Mean number of tokens that a round of `verifier` emits over the trees, exactly as by `one_round`."""
    total = 0.0
    for possible in shapes:

        def verify(rng: Randomness, possible: Possible = possible) -> int:
            tree = SeenTree(possible, rng)
            outcome: Outcome = verifier.verify(tree, SeenTargets(tree, target), rng)  # type: ignore[arg-type]
            return len(outcome.emitted)

        total += possible.weight * sum(
            weight * emitted for weight, emitted in enumerate_outcomes(verify, budget=10**7)
        )
    return total


@attrs.define(eq=False)
class SeenTree:
    """A `TokenTree` that draws its tokens as they are seen."""

    possible: Possible
    rng: Randomness
    seen: dict[int, int] = attrs.field(factory=dict)

    def __len__(self) -> int:
        return len(self._any.tree)

    @property
    def _any(self) -> WeightedTree:
        return self.possible.trees[0]

    @property
    def tokens(self) -> SeenTokens:
        return SeenTokens(self)

    @property
    def proposals(self) -> Mapping[int, Proposal]:
        return SeenProposals(self)

    def children(self, node: int) -> list[int]:
        return self._any.tree.children(node)

    def path(self, node: int) -> list[int]:
        return self._any.tree.path(node)

    def token(self, node: int) -> int:
        if node not in self.seen:
            weights, found = self.possible.look(node)
            self.possible = found[self.rng.choose(weights) if len(found) > 1 else 0]
            self.seen[node] = int(self._any.tree.tokens[node])
        return self.seen[node]

    def context(self, node: int) -> list[int]:
        """The tokens from the root to `node`, on which the laws at it depend."""
        return [self.token(above) for above in self.path(node)]


@attrs.frozen(eq=False)
class SeenTokens(Sequence[int]):
    """The tokens of a tree, as its tensor and as the list of it."""

    tree: SeenTree

    def tolist(self) -> SeenTokens:
        return self

    def __len__(self) -> int:
        return len(self.tree)

    def __getitem__(self, place):  # type: ignore[no-untyped-def]
        if isinstance(place, int):
            return self.tree.token(place)
        return torch.tensor([self.tree.token(node) for node in place])


@attrs.frozen(eq=False)
class SeenProposals(Mapping[int, Proposal]):
    """The laws of a tree, each known once the path to its node is."""

    tree: SeenTree

    def __getitem__(self, node: int) -> Proposal:
        self.tree.context(node)
        return self.tree._any.tree.proposals[node]

    def __iter__(self) -> Iterator[int]:
        return iter(self.tree._any.tree.proposals)

    def __len__(self) -> int:
        return len(self.tree._any.tree.proposals)


@attrs.frozen(eq=False)
class SeenTargets:
    """The target's distribution after every node."""

    tree: SeenTree
    target: ToyModel

    def __getitem__(self, node: int) -> Tensor:
        return self.target.probs(self.tree.context(node))
