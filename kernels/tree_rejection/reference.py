"""Recursive rejection down a tree in plain fp32 PyTorch; README.md has the derivation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

POINT, WHOLE, LEFT = range(3)
"""How a node was drawn: it was given; from its law; from its law without the siblings before it."""


@dataclass(frozen=True, eq=False)
class Row:
    """A tree with its target's rows and the uniforms that judge it.

    Attributes:
        tokens: of every node, the root first.
        parents: -1 for the root, each before its children; siblings stand in drawn order.
        ways: `POINT`, `WHOLE` or `LEFT` for every node; any for the root.
        laws: the draft probabilities `[vocab]` that every node was drawn from, fp32; siblings of which one
            is `LEFT` have one law, those that were given among them too. Else None for a given node.
        targets: the target's distribution after every node, fp32 `[nodes, vocab]`.
        uniforms: float64 in [0, 1), on the CPU; as many as nodes are enough.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    ways: Sequence[int]
    laws: Sequence[Tensor | None]
    targets: Tensor
    uniforms: Tensor

    @property
    def children(self) -> list[list[int]]:
        """Of every node, in drawn order."""
        found: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                found[parent].append(node)
        return found


@dataclass(frozen=True)
class Walk:
    """What became of a row.

    Attributes:
        path: accepted nodes, the root first.
        extra: the token after them.
        bonus: whether it was drawn from the target at a leaf.
        used: how many uniforms decided it.
    """

    path: tuple[int, ...]
    extra: int
    bonus: bool
    used: int


class Undecidable(Exception):
    """A distribution is none, or the uniforms are used up."""


def walk(row: Row) -> Walk:
    """Judge the children of the root, of the one that is accepted, and so on.

    Raises:
        Undecidable: a law or a target on the way is no distribution, or the uniforms are used up.
    """
    uniforms, used, children, path = row.uniforms.tolist(), 0, row.children, [0]

    def toss() -> float:
        nonlocal used
        if used == len(uniforms):
            raise Undecidable
        used += 1
        return float(uniforms[used - 1])

    while children[path[-1]]:
        left, scale = row.targets[path[-1]], 1.0
        for child, law in _laws(row, children[path[-1]]):
            wanted, offered = float(left[row.tokens[child]]) / scale, float(law[row.tokens[child]])
            if not 0 <= wanted < float("inf"):
                raise Undecidable
            if wanted > 0 and toss() < (wanted / offered if offered > 0 else 1):
                path.append(child)
                break
            rest = (left.double() - scale * law).clamp(min=0).float()
            if (total := float(rest.sum(dtype=torch.float64))) > 0:
                left, scale = rest, total
        else:
            return Walk(tuple(path), _choose(left, toss()), False, used)
    return Walk(tuple(path), _choose(row.targets[path[-1]], toss()), True, used)


def _laws(row: Row, siblings: list[int]) -> Iterator[tuple[int, Tensor]]:
    """Siblings, each with the law by which it is tried given those before it, float64 `[vocab]`."""
    for place, child in enumerate(siblings):
        given = row.laws[child]
        if row.ways[child] == POINT or given is None:
            law = torch.zeros_like(row.targets[0], dtype=torch.float64)
            law[row.tokens[child]] = 1
        else:
            law = given.double()
        if not place and not (abs(float(law.sum()) - 1) <= 1e-3 and float(law.min()) >= 0):
            raise Undecidable
        if place and row.ways[child] == LEFT:
            law = law.index_fill(0, torch.tensor([row.tokens[one] for one in siblings[:place]]), 0)
            law /= law.sum() if bool(law.any()) else 1
        yield child, law


def _choose(weights: Tensor, u: float) -> int:
    """The first token whose cumulative weight exceeds `u` times the total."""
    heights = weights.cumsum(0, dtype=torch.float64)
    total = float(heights[-1])
    if not 0 < total < float("inf"):
        raise Undecidable
    above = (heights > u * total).nonzero()
    return int(above[0]) if len(above) else int(weights.nonzero()[-1])
