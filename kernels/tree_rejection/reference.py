"""Recursive rejection down a tree in plain fp32 PyTorch; README.md has the derivation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

FIXED, FULL, REMAINING = range(3)
"""How a node was drawn: not at all, as a fixed token; from its full law; from what earlier siblings left."""


@dataclass(frozen=True, eq=False)
class RejectionCase:
    """A tree with its target's rows and the uniforms that judge it.

    Attributes:
        tokens: of every node, the root first.
        parents: -1 for the root, each before its children; siblings stand in drawn order.
        draw_kinds: `FIXED`, `FULL` or `REMAINING` for every node; any for the root.
        laws: the draft probabilities `[vocab]` that every node was drawn from, fp32; siblings of which one
            is `REMAINING` have one law, fixed ones among them too. Else None for a fixed node.
        targets: the target's distribution after every node, fp32 `[nodes, vocab]`.
        uniforms: float64 in [0, 1), on the CPU; as many as nodes are enough.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    draw_kinds: Sequence[int]
    laws: Sequence[Tensor | None]
    targets: Tensor
    uniforms: Tensor

    @property
    def children(self) -> list[list[int]]:
        """The children of every node, in drawn order."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                children[parent].append(node)
        return children


@dataclass(frozen=True)
class Walk:
    """What rejection makes of a case.

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


def walk(case: RejectionCase) -> Walk:
    """Judge the children of the root, of the one that is accepted, and so on.

    Raises:
        Undecidable: a law or a target on the way is no distribution, or the uniforms are used up.
    """
    uniforms, used, children, path = case.uniforms.tolist(), 0, case.children, [0]

    def toss() -> float:
        nonlocal used
        if used == len(uniforms):
            raise Undecidable
        used += 1
        return float(uniforms[used - 1])

    while children[path[-1]]:
        left, scale = case.targets[path[-1]], 1.0
        for child, law in _laws(case, children[path[-1]]):
            target_mass, draft_mass = float(left[case.tokens[child]]) / scale, float(law[case.tokens[child]])
            if not 0 <= target_mass < float("inf"):
                raise Undecidable
            if target_mass > 0 and toss() < (target_mass / draft_mass if draft_mass > 0 else 1):
                path.append(child)
                break
            rest = (left.double() - scale * law).clamp(min=0).float()
            if (total := float(rest.sum(dtype=torch.float64))) > 0:
                left, scale = rest, total
        else:
            return Walk(tuple(path), _choose(left, toss()), False, used)
    return Walk(tuple(path), _choose(case.targets[path[-1]], toss()), True, used)


def _laws(case: RejectionCase, siblings: list[int]) -> Iterator[tuple[int, Tensor]]:
    """Siblings, each with the law by which it is tried after those before it, float64 `[vocab]`."""
    for index, child in enumerate(siblings):
        full = case.laws[child]
        if case.draw_kinds[child] == FIXED or full is None:
            law = torch.zeros_like(case.targets[0], dtype=torch.float64)
            law[case.tokens[child]] = 1
        else:
            law = full.double()
        if not index and not (abs(float(law.sum()) - 1) <= 1e-3 and float(law.min()) >= 0):
            raise Undecidable
        if index and case.draw_kinds[child] == REMAINING:
            law = law.index_fill(0, torch.tensor([case.tokens[earlier] for earlier in siblings[:index]]), 0)
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
