"""What a fixed shape fixes beforehand, as arrays: its levels, and the whole tree if no token is missing."""

from __future__ import annotations

from functools import lru_cache

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood.strategies.policies.level_draws import Numbers
from draftwood.strategies.policies.shapes import RankPath, Shape


def ranks_below(shape: Shape) -> dict[RankPath, list[int]]:
    """For every path with children, their ranks."""
    ranks: dict[RankPath, list[int]] = {}
    for *above, rank in shape:
        ranks.setdefault(tuple(above), []).append(rank)
    return ranks


@attrs.frozen(eq=False)
class LevelPaths:
    """The paths of a level that have children.

    Attributes:
        ranks: int64 `[paths, most children]`; -1 for none.
        below: int64 `[paths, most children]`, the number of each child among the paths of the next level;
            -1 where it has no children.
        children: how many each has, `[paths]`.
        most_likely: how many of the most likely tokens these are taken from, `[paths]`.
    """

    ranks: Numbers
    below: Numbers
    children: Numbers
    most_likely: Numbers


@lru_cache
def level_paths(shape: Shape) -> list[LevelPaths]:
    """Level by level."""
    ranks = ranks_below(shape)
    levels = []
    paths: list[RankPath] = [()]
    while paths:
        most = max(len(ranks[path]) for path in paths)
        inner = [(*path, rank) for path in paths for rank in ranks[path] if (*path, rank) in ranks]
        numbers = {path: number for number, path in enumerate(inner)}
        of_ranks, below = np.full((len(paths), most), -1), np.full((len(paths), most), -1)
        for row, path in enumerate(paths):
            of_ranks[row, : len(ranks[path])] = ranks[path]
            below[row, : len(ranks[path])] = [numbers.get((*path, rank), -1) for rank in ranks[path]]
        levels.append(LevelPaths(of_ranks, below, (of_ranks >= 0).sum(1), of_ranks.max(1) + 1))
        paths = inner
    return levels


@attrs.frozen(eq=False)
class WholeLevel:
    """The nodes of a level that have children, where all tokens of the shape are there.

    Attributes:
        asked: their numbers among all nodes with children.
        above: int64 `[1, nodes]`, the request numbers of their parents.
        wanted: children of each, `[nodes]`.
        most: the most of these.
        children: the numbers that their children have in the tree.
        path, rank: of every child, the number of its parent in `asked` and its own among its siblings.
    """

    asked: slice
    above: Tensor
    wanted: Numbers
    most: int
    children: slice
    path: Numbers
    rank: Numbers


@attrs.frozen(eq=False)
class WholeTree:
    """A shape as a tree.

    Attributes:
        parents, depths, requests: as `TreeBatch` has them, of one row.
        inner: the nodes with children.
        levels: of these.
    """

    parents: Numbers
    depths: Numbers
    requests: Numbers
    inner: Numbers
    levels: tuple[WholeLevel, ...]

    @property
    def most(self) -> int:
        """Children of a node."""
        return max(level.most for level in self.levels)


@lru_cache
def whole_tree(shape: Shape) -> WholeTree:
    """The tree of a shape, nodes level by level in the order of their parents."""
    size = len(shape) + 1
    parents, depths, requests = np.full(size, -1), np.zeros(size, dtype=np.int64), np.full((size, 2), -1)
    numbers = np.full(size, -1)  # of requests
    nodes, made, asked = np.zeros(1, dtype=np.int64), 1, 0
    inner, levels = [], []
    for number, paths in enumerate(level_paths(shape)):
        path, rank = np.nonzero(paths.ranks >= 0)
        children = slice(made, made := made + len(path))
        parents[children], depths[children] = nodes[path], number + 1
        requests[nodes, 0], requests[nodes, 1] = number, np.arange(len(nodes))
        above = np.where(parents[nodes] >= 0, numbers[parents[nodes]], -1)
        asked_here = slice(asked, asked := asked + len(nodes))
        numbers[nodes] = np.arange(asked_here.start, asked_here.stop)
        levels.append(
            WholeLevel(
                asked=asked_here,
                above=torch.from_numpy(above[None]),
                wanted=paths.children,
                most=int(paths.children.max()),
                children=children,
                path=path,
                rank=rank,
            )
        )
        inner.append(nodes)
        nodes = np.arange(children.start, children.stop)[paths.below[path, rank] >= 0]
    return WholeTree(parents, depths, requests, np.concatenate(inner), tuple(levels))
