"""Draws without replacement on a CPU, a few hundred numbers each; README.md has the derivation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.kernels.ordered_draws.reference import Draws, unsound

BLOCK = 256


class BlockDraws:
    """Children of many nodes, drawn one after another from weights that were summed once, in blocks.

    Attributes:
        left: float64 `[rows, nodes]`, the weight that is left to draw from at every node.
    """

    def __init__(self, probs: Tensor) -> None:
        """Sum the weights of `probs` `[rows, nodes, vocab]`, float32 or float64 on the CPU."""
        rows, nodes, vocab = probs.shape
        whole = vocab // BLOCK * BLOCK
        # In the weights' own dtype, whose rounding they have anyway: converting costs ten times as much.
        parts = [probs[..., :whole].unflatten(2, (-1, BLOCK)).sum(-1)] if whole else []
        if whole < vocab:
            parts.append(probs[..., whole:].sum(-1, keepdim=True))
        self._sums = torch.cat(parts, -1).double().numpy()
        self._probs = probs.numpy()
        self._drawn = np.full((rows, nodes, 1), -1)
        self.left: NDArray[np.float64] = self._sums.sum(-1)

    def draw(
        self, rows: NDArray[np.intp], nodes: NDArray[np.intp], uniforms: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The next child of each of these nodes, by a uniform for each; -1 where no weight is left.

        Returns:
            Tokens and their weights, `[len(rows)]` each.

        Raises:
            ValueError: a node's weights sum to NaN or infinity.
        """
        each = np.arange(len(rows))
        sums = self._sums[rows, nodes]
        heights = sums.cumsum(1)
        totals = heights[:, -1]
        if not np.isfinite(totals).all():
            raise unsound(float(totals[~np.isfinite(totals)][0]))
        bounds = (uniforms * totals)[:, None]
        block = _first_above(sums, heights, bounds)
        tokens = block[:, None] * BLOCK + np.arange(BLOCK)
        within = np.minimum(tokens, self._probs.shape[2] - 1)
        weights = self._probs[rows[:, None], nodes[:, None], within].astype(np.float64)
        weights[tokens != within] = 0
        earlier = self._drawn[rows, nodes]
        weights[(tokens[:, :, None] == earlier[:, None, :]).any(2)] = 0
        below = np.where(block > 0, heights[each, block - 1], 0.0)[:, None]
        first = _first_above(weights, below + weights.cumsum(1), bounds)
        drawn, chances = tokens[each, first], weights[each, first]
        weights[each, first] = 0
        self._sums[rows, nodes, block] = weights.sum(1)
        self.left[rows, nodes] = self._sums[rows, nodes].sum(1)
        drawn = np.where(totals > 0, drawn, -1)
        self._remember(rows, nodes, drawn)
        return drawn, chances

    def _remember(self, rows: NDArray[np.intp], nodes: NDArray[np.intp], tokens: NDArray[np.int64]) -> None:
        free = (self._drawn[rows, nodes] < 0).argmax(1)
        self._drawn[rows, nodes, free] = tokens
        if (self._drawn[..., -1] >= 0).any():
            more = np.full_like(self._drawn, -1)
            self._drawn = np.concatenate([self._drawn, more], 2)


def draw(*, probs: Tensor, limits: NDArray[np.int64], uniforms: NDArray[np.float64]) -> Draws:
    """What `reference.draw` gives, for tensors of any device."""
    (nodes, draws), blocks = uniforms.shape, BlockDraws(probs.unsqueeze(0).cpu())
    tokens, chances = np.full((nodes, draws), -1), np.zeros((nodes, draws))
    left = np.zeros((nodes, draws + 1))
    seen = limits >= 0
    if not np.isfinite(blocks.left[0, seen]).all():
        raise unsound(float(blocks.left[0, seen][~np.isfinite(blocks.left[0, seen])][0]))
    for number in range(draws + 1):
        left[:, number] = np.where(seen, blocks.left[0], 0.0)
        (chosen,) = np.nonzero((limits > number) & (blocks.left[0] > 0))
        if number < draws and len(chosen):
            row = np.zeros_like(chosen)
            tokens[chosen, number], chances[chosen, number] = blocks.draw(
                row, chosen, uniforms[chosen, number]
            )
    return Draws(tokens, chances, left)


def _first_above(
    weights: NDArray[np.float64], heights: NDArray[np.float64], bounds: NDArray[np.float64]
) -> NDArray[np.intp]:
    """For every row the first entry with weight whose height exceeds the bound; rounding may leave none,
    and the last entry with weight is meant then."""
    above = (heights > bounds) & (weights > 0)
    first = above.argmax(1)
    last = weights.shape[1] - 1 - (weights[:, ::-1] > 0).argmax(1)
    return np.where(above.any(1), first, last)
