"""The trees of a round side by side on the host, and the walks that all rows take at once."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood import Outcome, TokenTree, TreeBatch
from draftwood.kernels.transfer import sent
from draftwood.kernels.tree_plan.arrays import Ints, links, padded


@attrs.frozen(eq=False)
class TreeRows:
    """Trees of several rows, padded to the widest; node 0 is the root of each.

    Attributes:
        tokens: int64 `[rows, nodes]`.
        parents: int64 `[rows, nodes]`, -1 for roots and padding.
        counts: nodes of every row, `[rows]`.
        first_child: of every node, `[rows, nodes]`; 0 for none.
        next_sibling: of every node, `[rows, nodes]`; 0 for none.
    """

    tokens: Ints
    parents: Ints
    counts: Ints
    first_child: Ints = attrs.field(init=False)
    next_sibling: Ints = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        first, further = links(self.parents)
        object.__setattr__(self, "first_child", first)
        object.__setattr__(self, "next_sibling", further)

    @classmethod
    def of(cls, trees: Sequence[TokenTree]) -> TreeRows:
        """The arrays of `trees`, at least one."""
        if isinstance(trees, TreeBatch):
            return cls(trees.tokens, trees.parents, trees.counts)
        tokens = [tree.tokens[: tree.size].tolist() for tree in trees]
        parents = [tree.parents[: tree.size].tolist() for tree in trees]
        return cls(padded(tokens, 0), padded(parents, -1), np.array([tree.size for tree in trees]))

    def on(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """`parents`, 0 for none, and `tokens` on `device`, by one copy."""
        both = np.stack([self.parents.clip(min=0), self.tokens])
        parents, tokens = sent(both, device)
        return parents, tokens

    def follow(self, accepted: NDArray[np.bool_]) -> list[list[int]]:
        """Every row's path from the root along the first of each node's `accepted` children.

        `accepted` `[rows, nodes]` says of every node whether its parent accepts it.
        """
        rows = np.arange(len(self.tokens))
        row, node = np.nonzero(accepted & (self.parents >= 0))
        above = row * self.parents.shape[1] + self.parents[row, node]
        parent, first = np.unique(above, return_index=True)
        step = np.zeros_like(self.parents)
        step.flat[parent] = node[first]
        here, steps = np.zeros_like(self.counts), [np.zeros_like(self.counts)]
        while True:
            # A row that has come to its end has no further node, and the root is nobody's child.
            here = np.where((here > 0) | (len(steps) == 1), step[rows, here], 0)
            if not here.any():
                return [[0, *(node for node in path[1:] if node)] for path in np.stack(steps, 1).tolist()]
            steps.append(here)

    def outcomes(self, paths: Sequence[Sequence[int]], extra: Sequence[int]) -> list[Outcome]:
        """Returns the outcome of every row, from its path and the token after it."""
        rows = enumerate(zip(paths, extra, strict=True))
        return [self.outcome(row, path, token) for row, (path, token) in rows]

    def outcome(self, row: int, path: Sequence[int], extra: int) -> Outcome:
        """Returns the outcome of one row, from its path and the token after it."""
        return Outcome(
            path=path,
            tokens=self.tokens[row, list(path)].tolist(),
            extra=extra,
            bonus=not self.first_child[row, path[-1]],
            drafted=int(self.counts[row]) - 1,
        )
