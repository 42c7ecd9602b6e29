"""The rows that the kernels of race verification judge, and their times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from draftwood.kernels.tree_plan.arrays import REMAINING, Floats, Ints, TreeArrays, Walk
from draftwood.kernels.tree_race import dispatch
from draftwood.laws.randomness import node_uniforms


def race_walks(trees: TreeArrays) -> list[Walk | None]:
    """Returns the kernels' walk of every row; None for one that they do not know, as the plain verifier may.

    A row's first numbers start the streams of its clocked nodes, and its coins follow.
    """
    children = _children_of(trees)
    clocked = children > 2
    rows = np.flatnonzero(_served(trees, children))
    walks: list[Walk | None] = [None] * len(children)
    if not len(rows):
        return walks
    clocks = clocked.sum(1)
    number = np.arange(trees.uniforms.shape[1]) + clocks[:, None]
    inside = number < trees.uniforms.shape[1]
    coins = np.where(inside, np.take_along_axis(trees.uniforms, np.where(inside, number, 0), 1), np.nan)
    served = replace(
        trees,
        uniforms=coins[rows],
        **{name: getattr(trees, name)[rows] for name in _OF_A_ROW},
    )
    waits = _waits(trees.uniforms, clocked)
    for row, walk in zip(rows.tolist(), dispatch.walk(served, waits[rows]), strict=True):
        walks[row] = None if walk is None else replace(walk, used=walk.used + int(clocks[row]))
    return walks


_OF_A_ROW = ("tokens", "parents", "counts", "draw_kinds", "laws", "targets")


def _children_of(trees: TreeArrays) -> Ints:
    """Returns how many children each node has, `[rows, nodes]`."""
    children = np.zeros_like(trees.parents)
    row, node = np.nonzero(trees.parents >= 0)
    np.add.at(children, (row, trees.parents[row, node]), 1)
    return children


def _served(trees: TreeArrays, children: Ints) -> NDArray[np.bool_]:
    """Whether siblings are few enough, without replacement, and differ, `[rows]`."""
    served: NDArray[np.bool_] = children.max(1) <= dispatch.MOST
    row, node = np.nonzero(trees.parents >= 0)
    above = trees.parents[row, node]
    several = children[row, above] > 1
    row, node, above = row[several], node[several], above[several]
    served[row[trees.draw_kinds[row, node] != REMAINING]] = False
    sibling = (row * trees.parents.shape[1] + above) * trees.vocab + trees.tokens[row, node]
    order = np.argsort(sibling)
    served[row[order[1:]][sibling[order[1:]] == sibling[order[:-1]]]] = False
    return served


def _waits(uniforms: Floats, clocked: NDArray[np.bool_]) -> Floats:
    """Exponential times of rate 1 from the streams of the clocked nodes, `[rows, nodes, MOST + 1]`."""
    waits = np.zeros((*clocked.shape, dispatch.MOST + 1))
    row, _ = np.nonzero(clocked)
    number = (clocked.cumsum(1) - 1)[clocked]
    there = number < uniforms.shape[1]
    # Where a tape has ended the coins are missing too.
    first = np.nan_to_num(uniforms[row, np.where(there, number, 0)])
    waits[clocked] = -np.log1p(-np.maximum(node_uniforms(first, dispatch.MOST + 1), 2.0**-54))
    return waits
