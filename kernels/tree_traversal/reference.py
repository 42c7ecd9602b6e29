"""Traversal and class order down a tree in plain PyTorch; README.md has the derivation."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from draftwood.kernels.class_window.reference import Window
from draftwood.kernels.tree_plan.arrays import DUST, FIXED, REMAINING, TreeCase, Undecidable, Walk

Tries = Generator[tuple[int, Tensor]]
"""Siblings in the order in which they are tried, each with the law `[vocab]` by which it is."""


@dataclass
class Tape:
    """Uniforms, used from the first on."""

    uniforms: list[float]
    used: int = 0

    def toss(self) -> float:
        if self.used == len(self.uniforms):
            raise Undecidable
        self.used += 1
        return self.uniforms[self.used - 1]


@dataclass
class Left:
    """What failed children left of a node's target, times allowance and `scale`, float64 `[vocab]`."""

    weights: Tensor
    deficit: float
    scale: float = 1.0

    @property
    def share(self) -> Tensor:
        return self.weights / self.scale

    def reject(self, law: Tensor) -> None:
        rest = (self.weights - self.scale * law).clamp(min=0)
        if (scale := float(rest.sum()) + self.deficit) > 0:
            self.weights, self.scale = rest, scale


def walk(case: TreeCase, *, leaf_first: bool, classes: bool) -> Walk:
    """Judge the tree.

    Args:
        case: the tree.
        leaf_first: whether a child's subtree is settled before the child (traversal) or after it (rejection).
        classes: whether siblings without replacement are tried in class order.

    Raises:
        Undecidable: a law or a target on the way is no distribution, or the uniforms are used up.
    """
    tape, children = Tape(case.uniforms.tolist()), case.children

    def visit(node: int, allowance: float) -> tuple[list[int], int] | None:
        """What is accepted from `node` down, and the extra token; None where nothing is."""
        left = Left(case.targets[node].double() * allowance, 1 - allowance)
        for child, law in _tries(case, children[node], left, tape, classes):
            target_mass, draft_mass = float(left.share[case.tokens[child]]), float(law[case.tokens[child]])
            if not 0 <= target_mass < float("inf"):
                raise Undecidable
            chance = min(1.0, target_mass / draft_mass) if draft_mass > 0 else 1.0
            if target_mass > 0 and chance >= DUST and (leaf_first or tape.toss() < chance):
                below = visit(child, chance if leaf_first else 1.0)
                if below is not None:
                    return [node, *below[0]], below[1]
            left.reject(law)
        if leaf_first and tape.toss() >= 1 - left.deficit / left.scale and node:
            return None
        return [node], choose(left.weights, tape.toss())

    judged = visit(0, 1.0)
    assert judged is not None
    path, extra = judged
    return Walk(tuple(path), extra, not children[path[-1]], tape.used)


def _tries(case: TreeCase, siblings: list[int], left: Left, tape: Tape, classes: bool) -> Tries:
    if not siblings:
        return
    law = _law(case, siblings[0])
    if not (abs(float(law.sum()) - 1) <= 1e-3 and float(law.min()) >= 0):
        raise Undecidable
    if classes and case.draw_kinds[siblings[0]] == REMAINING:
        yield from _class_order(case, siblings, law, left, tape)
        return
    for index, child in enumerate(siblings):
        law = _law(case, child)
        if index and case.draw_kinds[child] == REMAINING:
            law = law.index_fill(0, torch.tensor([case.tokens[earlier] for earlier in siblings[:index]]), 0)
            law /= law.sum() if bool(law.any()) else 1
        yield child, law


def _class_order(case: TreeCase, siblings: list[int], law: Tensor, left: Left, tape: Tape) -> Tries:
    """Of a waiting sibling and the next one the better one first; the other one waits."""
    waiting, h, draft = siblings[0], law, law
    for number, following in enumerate(siblings[1:], start=2):
        window = Window.open(h, draft, left.share, further=len(siblings) - number)
        stays, comes = (tape.toss() < float(window.f[case.tokens[one]]) for one in (waiting, following))
        first, waiting = (following, waiting) if comes and not stays else (waiting, following)
        yield first, window.first()
        h = window.second(case.tokens[first])
        draft = draft.index_fill(0, torch.tensor(case.tokens[first]), 0)
    yield waiting, h


def _law(case: TreeCase, child: int) -> Tensor:
    law = case.laws[child]
    if case.draw_kinds[child] != FIXED and law is not None:
        return law.double()
    point = torch.zeros(case.targets.shape[-1], dtype=torch.float64)
    point[case.tokens[child]] = 1
    return point


def choose(weights: Tensor, u: float) -> int:
    """The first token whose cumulative weight exceeds `u` times the total."""
    heights = weights.cumsum(0)
    total = float(heights[-1])
    if not 0 < total < float("inf"):
        raise Undecidable
    above = (heights > u * total).nonzero()
    return int(above[0]) if len(above) else int(weights.nonzero()[-1])
