"""Trees with as many children a node at each level, without replacement: one level worked out at a time.

What is drawn below a child does not depend on its siblings, so neither verifiers nor the optimum need to
see every tree: [4,1] over five tokens has 75,000.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations, permutations, product

import attrs
import torch
from torch import Tensor

from benchmarks.research.expected_tokens import COARSE
from draftwood import Randomness, TokenTree, WithoutReplacement
from draftwood.strategies.verifiers.residual import Residual
from draftwood.strategies.verifiers.walk import TreeWalk
from draftwood.testing import ToyModel, WeightedTree, enumerate_outcomes

Text = tuple[int, ...]


@attrs.define(eq=False)
class LevelTrees:
    """All trees with `branching[d]` children a node at depth d.

    Attributes:
        draft: proposes.
        branching: children, level by level.
        prompt: the text before; its last token is the root.
    """

    draft: ToyModel
    branching: tuple[int, ...]
    prompt: Text = (0,)

    def expected_tokens(self, verifier: TreeWalk, target: ToyModel) -> float:
        """Mean tokens that a round of `verifier` emits, the extra one included."""
        return self._below(verifier, target, (), 1.0)

    def _below(self, verifier: TreeWalk, target: ToyModel, path: Text, allowance: float) -> float:
        """Expected nodes on the accepted path from the node of `path` down, which is visited.

        From the leaves up a node is on it with its allowance, whatever hangs below it.
        """
        if len(path) == len(self.branching):
            return allowance
        probs = target.probs([*self.prompt, *path])
        law = WithoutReplacement(self._law(path))

        def level(siblings: Text, rng: Randomness) -> float:
            residual, visited, nodes = Residual.of(probs, allowance), 1.0, 0.0
            tries = verifier.order.tries(siblings, law, rng)
            while (candidate := tries.next(residual)) is not None:
                chance = residual.chance(candidate)
                below = (*path, candidate.token)
                if chance > 0 and verifier.leaf_first:
                    nodes += visited * self._below(verifier, target, below, chance)
                elif chance > 0:
                    nodes += visited * chance * self._below(verifier, target, below, 1.0)
                visited *= 1 - chance
                residual.reject(candidate)
            return nodes

        mean = 0.0
        for siblings, weight in self._draws(path):
            outcomes = enumerate_outcomes(partial(level, siblings), budget=10**6, arrival_step=COARSE)
            mean += weight * sum(chance * nodes for chance, nodes in outcomes)
        return allowance + mean

    def sets(self) -> list[WeightedTree]:
        """Every tree with its weight, siblings in the order of their numbers instead of the drawn one."""
        return [self._tree(prefixes, weight) for prefixes, weight in self._grown([()])]

    def _grown(self, level: Sequence[Text]) -> Iterator[tuple[list[Text], float]]:
        """Yields the prefixes below a level, in every way that they may be drawn, with its weight."""
        if not level or len(level[0]) == len(self.branching):
            yield [], 1.0
            return
        for choice in product(*(self._sets(path) for path in level)):
            children = [
                (*path, token) for path, (tokens, _) in zip(level, choice, strict=True) for token in tokens
            ]
            here = 1.0
            for _, weight in choice:
                here *= weight
            for below, weight in self._grown(children):
                yield children + below, here * weight

    def _sets(self, path: Text) -> list[tuple[Text, float]]:
        weights: dict[Text, float] = {}
        for tokens, weight in self._draws(path):
            weights[tuple(sorted(tokens))] = weights.get(tuple(sorted(tokens)), 0.0) + weight
        return list(weights.items())

    def _draws(self, path: Text) -> Iterator[tuple[Text, float]]:
        """The children of the node of `path` in the order in which they are drawn, with its chance."""
        law = self._law(path).tolist()
        for tokens in combinations(range(len(law)), self.branching[len(path)]):
            for order in permutations(tokens):
                weight, left = 1.0, 1.0
                for token in order:
                    weight *= law[token] / left
                    left -= law[token]
                yield order, weight

    def _law(self, path: Text) -> Tensor:
        return self.draft.probs([*self.prompt, *path])

    def _tree(self, prefixes: Sequence[Text], weight: float) -> WeightedTree:
        nodes = {(): 0} | {path: number for number, path in enumerate(prefixes, start=1)}
        parents = [-1, *(nodes[path[:-1]] for path in prefixes)]
        tokens = [self.prompt[-1], *(path[-1] for path in prefixes)]
        depths = torch.tensor([len(path) for path in nodes])
        above = {path[:-1] for path in prefixes}
        laws = {node: WithoutReplacement(self._law(path)) for path, node in nodes.items() if path in above}
        tree = TokenTree(torch.tensor(tokens), torch.tensor(parents), laws, depths=depths)
        return WeightedTree(weight, tree)
