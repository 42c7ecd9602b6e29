"""Policies that break law P: correct ones with other chance, or whose trees are changed once grown."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import (
    PerChild,
    Randomness,
    Request,
    TokenTree,
    TreePolicy,
    WithoutReplacement,
)
from draftwood.strategies.policies.wrapper import PolicyWrapper
from draftwood.trees.growth import by_distributions


@attrs.frozen
class Changed(PolicyWrapper):
    """`policy` drawing from `stream(rng)`, its trees passed through `tree`."""

    policy: TreePolicy
    stream: Callable[[Randomness], Randomness] = lambda rng: rng
    tree: Callable[[TokenTree], TokenTree] = lambda tree: tree

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        stream = self.stream(rng)
        tree = yield from by_distributions(self.policy.grow(root, stream), stream)
        return self.tree(tree)


def warmer(tree: TokenTree) -> TokenTree:
    """Declares the distributions at temperature 2."""
    laws: Mapping[int, Any] = tree.proposals
    warm = {node: law.p.sqrt() for node, law in laws.items()}
    return attrs.evolve(tree, proposals={node: WithoutReplacement(p / p.sum()) for node, p in warm.items()})


def drafters_exchanged(tree: TokenTree) -> TokenTree:
    """Declares for every child another drafter's distribution."""
    laws: Mapping[int, Any] = tree.proposals
    return attrs.evolve(tree, proposals={node: PerChild(law.ps[::-1]) for node, law in laws.items()})


def without_unlikely(tree: TokenTree, least: float = 0.3) -> TokenTree:
    """Drops nodes whose own draft probability is below `least`, and what hangs below them."""
    chances = _chances(tree)
    return tree.subtree(
        torch.tensor(
            [
                node
                for node in range(len(tree))
                if all(chances[above] >= least for above in tree.path(node)[1:])
            ]
        )
    )


def two_likeliest(tree: TokenTree) -> TokenTree:
    """Keeps the two nodes with the most likely paths."""
    chances = _chances(tree)
    reach = [float(torch.tensor([chances[above] for above in tree.path(v)]).prod()) for v in range(len(tree))]
    kept = sorted(range(len(tree)), key=lambda node: -reach[node])[:3]
    return tree.subtree(torch.tensor(sorted(kept)))


def equal_siblings_merged(tree: TokenTree) -> TokenTree:
    """Keeps the first of the siblings that hold one token."""
    keys = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
    first = [node for node, key in enumerate(keys) if keys.index(key) == node]
    return tree.subtree(torch.tensor([v for v in first if set(tree.path(v)) <= set(first)]))


def _chances(tree: TokenTree) -> list[float]:
    """The draft's probability of every node's token given its earlier siblings; 1 for the root."""
    tokens, chances = tree.tokens.tolist(), [1.0] * len(tree)
    for node, law in tree.proposals.items():
        children = tree.children(node)
        for k, child in enumerate(children):
            earlier = [tokens[sibling] for sibling in children[:k]]
            chances[child] = float(law.conditional(k, earlier)[tokens[child]])
    return chances
