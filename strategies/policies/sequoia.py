"""Sequoia's trees: the static shape that is best for a measured acceptance vector."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import attrs
import numpy as np

from draftwood import Growing, Proposal, Randomness, WithoutReplacement
from draftwood.base.errors import InvalidInput
from draftwood.base.validators import at_least
from draftwood.strategies.acceptance_vectors import as_acceptance, check_acceptance, validate_acceptance
from draftwood.strategies.laws import SingleLawPolicy, as_law
from draftwood.strategies.policies.dyspec import sampled_or_top
from draftwood.strategies.policies.shapes import RankPath, Shape
from draftwood.strategies.policies.static_tree import StaticTree


def best_shape(acceptance: Sequence[float], *, budget: int, depth: int) -> Shape:
    """The shape of at most `budget` nodes and `depth` levels with the most accepted tokens expected.

    A node that is judged has its k-th child accepted with probability `acceptance[k]`, wherever it is,
    so a node is accepted with the product of the entries on its path, and a shape's value is the sum over
    its nodes. Child k needs its earlier siblings; no node gets more than `len(acceptance)` children.

    The dynamic programme runs over levels left, ranks and nodes left, and stops at the level where one
    more gains nothing: O(levels * ranks * budget²) at most.

    Args:
        acceptance: as for `Sequoia`.
        budget: nodes at most, the root not counted, at least 1.
        depth: levels at most, at least 1.

    Returns:
        The nodes' rank paths, level by level. Nodes that can never be accepted are left out, but for (0,).

    Source: Sequoia, section 3.1 (arXiv 2402.12374), with the depth limit of its appendix.
    """
    check_acceptance(acceptance)
    if budget < 1 or depth < 1:
        raise InvalidInput(f"budget is {budget} and depth {depth}; give at least 1 for both.")
    most = min(budget, len(acceptance))
    # values[m]: the best value below a judged node with m nodes to spend and the levels done so far.
    values = np.zeros(budget + 1)
    choices: list[np.ndarray] = []  # [level][rank, nodes left]: nodes for this child with its subtree
    left = np.arange(budget + 1)[:, None] - np.arange(1, budget + 1)  # after a child took 1, 2, ... of m
    for _ in range(min(depth, budget)):
        chosen = np.zeros((most, budget + 1), dtype=np.int64)
        below = np.zeros(budget + 1)  # value of the children of higher ranks
        for rank in reversed(range(most)):
            child_value = acceptance[rank] * (1 + values[:-1])
            gains = np.where(left >= 0, child_value + below[left.clip(min=0)], -np.inf)
            best = gains.max(axis=1)
            chosen[rank] = np.where(best > 0, gains.argmax(axis=1) + 1, 0)
            below = best.clip(min=0)
        if (below <= values).all():
            break
        choices.append(chosen)
        values = below
    paths: list[RankPath] = []
    open_: list[tuple[RankPath, int, int, int]] = [((), len(choices), 0, budget)]
    while open_:
        path, levels, rank, nodes = open_.pop()
        spent = int(choices[levels - 1][rank, nodes]) if levels and rank < most else 0
        if spent:
            child = (*path, rank)
            paths.append(child)
            open_ += [(path, levels, rank + 1, nodes - spent), (child, levels - 1, 0, spent - 1)]
    return tuple(sorted(paths or [(0,)], key=lambda path: (len(path), path)))


# The tree only depends on the options; policies are copied for every row.
_cached_best_shape = lru_cache(maxsize=64)(best_shape)


ZOO_PAIR = (0.513, 0.118, 0.073, 0.033, 0.023, 0.027, 0.016, 0.013)


@attrs.frozen
class Sequoia(SingleLawPolicy):
    """The best static tree for an acceptance vector.

    Attributes:
        budget: nodes in the tree.
        depth: levels at most.
        acceptance: the chance of the first, second, ... child to be the accepted one at a node that is
            judged; no node gets more children than it has entries. `draftwood.strategies.acceptance`
            measures it. Default: that of the zoo's llama-7m with llama-draft at temperature 1, over 1,536
            tokens that the target wrote after 24 prompts (GSM8K, HumanEval, WikiText-2).
        law: how children are drawn; the paper's trees without replacement. `"top-k"` takes the most likely
            tokens instead, for temperature 0.

    Source: Sequoia, section 3.1 (arXiv 2402.12374).
    """

    budget: int = attrs.field(default=32, validator=at_least(1))
    depth: int = attrs.field(default=10, validator=at_least(1))
    acceptance: tuple[float, ...] = attrs.field(
        default=ZOO_PAIR, converter=as_acceptance, validator=validate_acceptance
    )
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law, validator=sampled_or_top)
    source = "Sequoia, section 3.1"

    @property
    def shape(self) -> Shape:
        """The tree, as in `StaticTree`."""
        return _cached_best_shape(self.acceptance, budget=self.budget, depth=self.depth)

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return StaticTree(self.shape).branches

    def grow(self, root: int, rng: Randomness) -> Growing:
        return _tree(self).grow(root, rng)


@lru_cache
def _tree(policy: Sequoia) -> StaticTree:
    return StaticTree(policy.shape, policy.law)
