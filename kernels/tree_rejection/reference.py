"""Recursive rejection down a tree in plain fp32 PyTorch; README.md has the derivation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from draftwood.kernels.tree_plan.arrays import DUST, FIXED, REMAINING, TreeCase, Undecidable, Walk


def walk(case: TreeCase) -> Walk:
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
            chance = target_mass / draft_mass if draft_mass > 0 else 1
            if target_mass > 0 and chance >= DUST and toss() < chance:
                path.append(child)
                break
            rest = (left.double() - scale * law).clamp(min=0).float()
            if (total := float(rest.sum(dtype=torch.float64))) > 0:
                left, scale = rest, total
        else:
            return Walk(tuple(path), _choose(left, toss()), False, used)
    return Walk(tuple(path), _choose(case.targets[path[-1]], toss()), True, used)


def _laws(case: TreeCase, siblings: list[int]) -> Iterator[tuple[int, Tensor]]:
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
