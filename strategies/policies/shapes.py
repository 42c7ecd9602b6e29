"""Static tree shapes, as data.

A shape is the set of its nodes' *rank paths*: the ranks from the root down, so that (0, 2) is the third
child of the root's first child.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TypeAlias

from draftwood.base.errors import InvalidInput, nearest

RankPath: TypeAlias = "tuple[int, ...]"
Shape: TypeAlias = "tuple[RankPath, ...]"

# Children of the nodes of every level, in order; a level's last nodes may be left out, as leaves.
_LEVELS: dict[str, tuple[tuple[int, ...], ...]] = {
    # The tree of 64 nodes, root included, for four heads (arXiv 2401.10774, figure 6; `mc_sim_7b_63` in
    # the authors' code).
    "medusa": (
        (10,),
        (10, 7, 3, 2, 1, 1, 1, 1, 1, 1),
        (10, 3, 2, 1, 1, 1, 1, 1, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1),
        (2,),
    ),
    # STree's configurations (arXiv 2505.14969, table 3). A is the authors' (figure 4a and their code). Of
    # the others the text only gives width, depth and number of tokens; who has which children is chosen
    # here to meet them: B and C evenly, D from wide to narrow, E as A with one more level.
    "stree-a": ((3,), (2, 1), (2, 1), (3,)),
    "stree-b": ((4,), (2,) * 4, (2,) * 8),
    "stree-c": ((3,), (2,) * 3, (1,) * 6),
    "stree-d": ((4,), (2, 1, 1), (1, 1), (1, 1)),
    "stree-e": ((3,), (2, 1), (2, 1), (2, 1), (3,)),
}


def _of_levels(levels: Sequence[Sequence[int]]) -> Shape:
    paths: list[RankPath] = []
    level: list[RankPath] = [()]
    for counts in levels:
        level = [(*path, rank) for path, count in zip(level, counts, strict=False) for rank in range(count)]
        paths += level
    return tuple(paths)


# Sorted trees for race verification, as text: searched for the zoo's llama-7m, on prompts that no table
# decodes (`python -m benchmarks shapes`). Up to 32 nodes with llama-draft at temperature 1; the last with
# llama-draft-deep at 0.6 and 1 together: for drafts that are right for long.
_SEARCHED = {
    "race-4": "1/1/1/1",
    "race-8": "2/1,1/1,1/1,1",
    "race-16": "3/1,1,1/1,1,1/1,1,1/1,1,1/0,0,1",
    "race-32": "3/2,2,2/1,1,1,1,1,1/1,1,1,1,1,1/1,1,1,1,1,1/1,1,0,1,0,1/0,0,0,1",
    "race-64": "3/2,2,1/2,1,1,1,1/1,1,1,1,1,1/1,1,1,1,1,1/1,1,1,1,1,1/"
    "1,1,1,1,1,1/1,1,1,1,1,1/1,1,1,1,1,1/1,1,1,1,0,1/1,1,1,1,1/1,0,1,0,1/1",
}


def as_shape(shape: str | Iterable[int | Iterable[int]]) -> Shape:
    """A shape from its name in `SHAPES`, its text, its nodes' rank paths in any order, or its nodes' parents.

    Text is what `as_text` gives: numbers of children, node after node, with a slash between levels. Parents
    are numbered as in a `TokenTree`: -1 for the root, which comes first, and parents before children.

    Returns:
        The rank paths level by level, siblings by rank.

    Raises:
        InvalidInput: an unknown name, no node, more numbers than nodes, a path twice or without its parent's,
            a negative rank, or parents out of order.
    """
    if isinstance(shape, str):
        if re.fullmatch(r"[\d,/]+", shape):
            return _of_text(shape)
        if shape not in SHAPES:
            raise InvalidInput(f"There is no tree shape {shape!r}{nearest(shape, SHAPES)}")
        return SHAPES[shape]
    nodes = list(shape)
    parents = [node for node in nodes if isinstance(node, int)]
    paths: list[RankPath] = [tuple(node) for node in nodes if not isinstance(node, int)]
    if parents and paths:
        raise InvalidInput("shape mixes parents and rank paths; give one of them for every node.")
    ordered = sorted(paths or _of_parents(parents), key=lambda path: (len(path), path))
    named = set(ordered) | {()}
    for path in ordered:
        if not path or any(isinstance(rank, bool) or not isinstance(rank, int) or rank < 0 for rank in path):
            raise InvalidInput(f"shape has a node at {path}; a rank path is one or more ranks >= 0.")
        if path[:-1] not in named:
            raise InvalidInput(f"shape has a node at {path} and none at {path[:-1]}; add its parent.")
    if not ordered:
        raise InvalidInput("shape has no node below the root; give at least the path (0,).")
    if len(ordered) >= len(named):
        twice = next(path for path, after in pairwise(ordered) if path == after)
        raise InvalidInput(f"shape has two nodes at {twice}; name every path once.")
    return tuple(ordered)


def as_text(shape: Shape) -> str:
    """Numbers of children, node after node and level by level: `2/1` is a root with two children, of which
    the first has one. Nodes at the end of a level that have none are left out, as are skipped ranks. A tree
    of one level ends in a slash, which tells it from a number."""
    children = Counter(path[:-1] for path in shape)
    levels, level = list[str](), list[RankPath]([()])
    while any(path in children for path in level):
        counts = [children[path] for path in level]
        while not counts[-1]:
            counts.pop()
        levels.append(",".join(map(str, counts)))
        level = [path for path in shape if len(path) == len(levels)]
    return "/".join(levels) if len(levels) > 1 else f"{levels[0]}/"


def _of_text(text: str) -> Shape:
    levels = [[int(word or -1) for word in level.split(",")] for level in text.removesuffix("/").split("/")]
    nodes = 1
    for counts in levels:
        if len(counts) > nodes or min(counts) < 0:
            raise InvalidInput(
                f"shape {text!r} has the numbers of children {counts} at a level of {nodes} nodes; write one "
                "number for each, and leave out those at its end that have none."
            )
        nodes = sum(counts)
    if not (shape := _of_levels(levels)):
        raise InvalidInput(f"shape {text!r} has no node below the root; give at least 1.")
    return shape


def _of_parents(parents: Sequence[int]) -> list[RankPath]:
    paths: list[RankPath] = []
    counts: list[int] = []
    for node, parent in enumerate(parents):
        if not (parent == -1 if node == 0 else 0 <= parent < node):
            raise InvalidInput(
                f"shape gives node {node} the parent {parent}; node 0 is the root with parent -1, and every "
                "other parent precedes its child."
            )
        paths.append((*paths[parent], counts[parent]) if node else ())
        counts.append(0)
        if node:
            counts[parent] += 1
    return paths[1:]


def ranks_below(shape: Shape) -> dict[RankPath, list[int]]:
    """For every path with children, their ranks."""
    ranks: dict[RankPath, list[int]] = {}
    for *above, rank in shape:
        ranks.setdefault(tuple(above), []).append(rank)
    return ranks


SHAPES: dict[str, Shape] = {name: _of_levels(levels) for name, levels in _LEVELS.items()} | {
    name: _of_text(text) for name, text in _SEARCHED.items()
}
"""The shapes that have a name."""
