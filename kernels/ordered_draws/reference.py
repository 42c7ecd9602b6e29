"""Draws without replacement in plain PyTorch; README.md has the derivation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Draws:
    """Children of many nodes, in drawn order.

    Attributes:
        tokens: int64 `[nodes, draws]`; -1 where no weight was left or the node's limit was reached.
        chances: float64 `[nodes, draws]`, their weights.
        left: float64 `[nodes, draws + 1]`, the weight left before each draw, and after the last.
    """

    tokens: NDArray[np.int64]
    chances: NDArray[np.float64]
    left: NDArray[np.float64]


def unsound(total: float) -> ValueError:
    """The error for weights that nothing can be drawn from."""
    return ValueError(f"A row of weights sums to {total}; check the logits for NaN or infinity.")


def draw(
    *,
    probs: Tensor,
    limits: NDArray[np.int64],
    uniforms: NDArray[np.float64],
    floors: NDArray[np.float64] | None = None,
) -> Draws:
    """Draw up to `limits[i]` distinct tokens for node i; fewer where fewer have a weight above 0.

    Args:
        probs: `[nodes, vocab]`, weights that need not be normalised.
        limits: `[nodes]`; a node below 0 is not looked at.
        uniforms: float64 in [0, 1), `[nodes, draws]`.
        floors: float64 `[nodes]`; a node that has no more weight left than this draws no more. None: 0.

    Raises:
        ValueError: a node's weights sum to NaN or infinity.
    """
    nodes, draws = uniforms.shape
    tokens, chances = np.full((nodes, draws), -1), np.zeros((nodes, draws))
    left = np.zeros((nodes, draws + 1))
    for node in np.flatnonzero(limits >= 0):
        rest = probs[node].double()
        for number in range(draws + 1):
            left[node, number] = weight = float(rest.sum())
            # What is left stays as it is once nothing more is drawn.
            if not 0 <= weight < float("inf"):
                raise unsound(weight)
            if number < limits[node] and weight > (0.0 if floors is None else floors[node]):
                heights = rest.cumsum(0)
                above = (heights > uniforms[node, number] * heights[-1]).nonzero()
                token = int(above[0]) if len(above) else int(rest.nonzero()[-1])
                tokens[node, number], chances[node, number] = token, float(rest[token])
                rest = rest.index_fill(0, torch.tensor(token, device=rest.device), 0)
    return Draws(tokens, chances, left)
