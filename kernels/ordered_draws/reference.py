"""Draws without replacement in plain PyTorch; README.md has the derivation."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import torch
from torch import Tensor

Draws = tuple[list[int], list[float]]
"""A node's tokens in drawn order, and their probabilities before any draw."""


def draw(
    *, probs: Tensor, count: int | Sequence[int], uniforms: Tensor, total: int | None = None
) -> list[Draws]:
    """Draw up to `count` distinct tokens for every node; fewer where fewer have a probability above 0.

    Args:
        probs: `[nodes, vocab]`, which need not be normalised; a row that holds NaN draws nothing.
        count: at least 0, one number or one for each node.
        uniforms: float64 in [0, 1), one a draw, node after node.
        total: how many altogether: the nodes behind the last of them draw nothing. None: no limit.

    Raises:
        ValueError: a row that holds infinity.
    """
    counts = [count] * len(probs) if isinstance(count, int) else count
    left = sys.maxsize if total is None else total
    tape, draws = iter(uniforms.tolist()), []
    for p, most in zip(probs, counts, strict=True):
        rest, tokens = p.double(), list[int]()
        while len(tokens) < min(most, left) and float(weight := rest.sum()) > 0:
            if not bool(weight.isfinite()):
                raise ValueError(f"A row of weights sums to {float(weight)}; check the logits for infinity.")
            heights = rest.cumsum(0)
            above = (heights > next(tape) * heights[-1]).nonzero()
            tokens.append(int(above[0]) if len(above) else int(rest.nonzero()[-1]))
            rest = rest.index_fill(0, torch.tensor(tokens[-1], device=rest.device), 0)
        left -= len(tokens)
        draws.append((tokens, p[tokens].tolist()))
    return draws
