"""The trees of a level policy put together from those of its levels, instead of grown one by one.

Where what grows below a node depends on its own path alone, a tree is its first level and, below every
node of that, a tree of the other levels; their probabilities multiply. [2,2,1] over 3 tokens has 17,496
trees, and these a few dozen parts.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import attrs

from draftwood import TreeBuilder
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.testing import ToyModel, WeightedTree, drawn_trees
from draftwood.testing.pairs import toy_drafter


def grafted_trees(
    policy: FixedTree, draft: ToyModel, *, prompt: tuple[int, ...] = (0,)
) -> list[WeightedTree]:
    """Every tree that `policy` draws after `prompt`, as `drawn_trees` finds it. `policy` must be local."""
    first, others = policy.levels[:1], policy.levels[1:]
    one_level = attrs.evolve(policy, depth=1, branching=first)
    tops = drawn_trees(one_level, toy_drafter(policy, draft), prompt=prompt)
    if not others:
        return tops
    lower = attrs.evolve(policy, depth=len(others), branching=others)
    below = {
        token: grafted_trees(lower, draft, prompt=(*prompt, token))
        for token in {token for top in tops for token in top.tree.tokens[1:].tolist()}
    }
    return [
        _graft(top, parts)
        for top in tops
        for parts in itertools.product(*(below[token] for token in top.tree.tokens[1:].tolist()))
    ]


def _graft(top: WeightedTree, parts: Sequence[WeightedTree]) -> WeightedTree:
    """`top` with each of its leaves replaced by the root of a part, numbered level by level."""
    tree = TreeBuilder(int(top.tree.tokens[0]))
    level = tree.add_children(0, top.tree.tokens[1:].tolist(), top.tree.proposals[0])
    places = [(node, part.tree, 0) for node, part in zip(level, parts, strict=True)]
    for node, part, place in places:
        children = part.children(place)
        if children:
            tokens = part.tokens[children].tolist()
            grown = tree.add_children(node, tokens, part.proposals[place])
            places += [(new, part, old) for new, old in zip(grown, children, strict=True)]
    return WeightedTree(top.weight * math.prod(part.weight for part in parts), tree.finish())
