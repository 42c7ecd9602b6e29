"""Draws without replacement on a CPU, a few hundred numbers each; README.md has the derivation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.kernels.ordered_draws.reference import Draws, unsound

BLOCK = 256
FEW = 6
"""Nodes that are drawn for one after another."""


class BlockDraws:
    """Children of many nodes, drawn one after another from weights that were summed once, in blocks.

    Attributes:
        left: float64 `[rows, nodes]`, the weight that is left to draw from at every node.
    """

    def __init__(self, probs: Tensor) -> None:
        """Sum the weights of `probs` `[rows, nodes, vocab]`, float32 or float64 on the CPU."""
        vocab = probs.shape[2]
        whole = vocab // BLOCK * BLOCK
        # In the weights' own dtype, whose rounding they have anyway: converting costs ten times as much.
        parts = [probs[..., :whole].unflatten(2, (-1, BLOCK)).sum(-1)] if whole else []
        if whole < vocab:
            parts.append(probs[..., whole:].sum(-1, keepdim=True))
        self._sums = torch.cat(parts, -1).double().numpy()
        self._probs = probs.numpy()
        self._drawn: dict[tuple[int, int], list[int]] = {}
        self.left: NDArray[np.float64] = self._sums.sum(-1)

    def draw(
        self, rows: NDArray[np.intp], nodes: NDArray[np.intp], uniforms: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """The next children of each of these nodes, as many as there are `uniforms` `[len(rows), n]` for one.

        Returns:
            Tokens (-1 where no weight is left), their weights, and the weight left before each, in the
            shape of `uniforms`.

        Raises:
            ValueError: a node's weights sum to NaN or infinity.
        """
        tokens = np.full(uniforms.shape, -1)
        chances, left = np.zeros(uniforms.shape), np.zeros(uniforms.shape)
        # Below some nodes the calls cost more than what they compute.
        if len(rows) <= FEW:
            for index, (row, node) in enumerate(zip(rows.tolist(), nodes.tolist(), strict=True)):
                for number, u in enumerate(uniforms[index].tolist()):
                    left[index, number] = self.left[row, node]
                    if not left[index, number] > 0:
                        _check(left[index, number])
                        break
                    tokens[index, number], chances[index, number] = self._draw_one(row, node, u)
            return tokens, chances, left
        for number in range(uniforms.shape[1]):
            left[:, number] = self.left[rows, nodes]
            (live,) = np.nonzero(left[:, number] != 0)
            if not len(live):
                break
            drawn = self._draw_each(rows[live], nodes[live], uniforms[live, number])
            tokens[live, number], chances[live, number] = drawn
        return tokens, chances, left

    def _draw_one(self, row: int, node: int, u: float) -> tuple[int, float]:
        sums = self._sums[row, node]
        heights = sums.cumsum()
        bound = u * heights[-1]
        _check(heights[-1])
        block = _first_of(sums, heights, bound)
        start = block * BLOCK
        weights = self._probs[row, node, start : start + BLOCK].astype(np.float64)
        earlier = self._drawn.setdefault((row, node), [])
        for token in earlier:
            if start <= token < start + BLOCK:
                weights[token - start] = 0
        below = heights[block - 1] if block else 0.0
        first = _first_of(weights, below + weights.cumsum(), bound)
        chance = float(weights[first])
        weights[first] = 0
        sums[block] = weights.sum()
        self.left[row, node] = sums.sum()
        earlier.append(start + first)
        return start + first, chance

    def _draw_each(
        self, rows: NDArray[np.intp], nodes: NDArray[np.intp], uniforms: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """One child of each of these nodes, which all have weight left."""
        each = np.arange(len(rows))
        sums = self._sums[rows, nodes]
        heights = sums.cumsum(1)
        _check(heights[:, -1].sum())
        bounds = (uniforms * heights[:, -1])[:, None]
        block = _first_above(sums, heights, bounds)
        tokens = block[:, None] * BLOCK + np.arange(BLOCK)
        within = np.minimum(tokens, self._probs.shape[2] - 1)
        weights = self._probs[rows[:, None], nodes[:, None], within].astype(np.float64)
        weights[tokens != within] = 0
        already = [self._drawn.setdefault(one, []) for one in zip(rows.tolist(), nodes.tolist(), strict=True)]
        for index, (earlier, start) in enumerate(zip(already, tokens[:, 0].tolist(), strict=True)):
            for token in earlier:
                if start <= token < start + BLOCK:
                    weights[index, token - start] = 0
        below = np.where(block > 0, heights[each, block - 1], 0.0)[:, None]
        first = _first_above(weights, below + weights.cumsum(1), bounds)
        drawn, chances = tokens[each, first], weights[each, first]
        weights[each, first] = 0
        self._sums[rows, nodes, block] = weights.sum(1)
        self.left[rows, nodes] = self._sums[rows, nodes].sum(1)
        for earlier, token in zip(already, drawn.tolist(), strict=True):
            earlier.append(token)
        return drawn, chances


def draw(*, probs: Tensor, limits: NDArray[np.int64], uniforms: NDArray[np.float64]) -> Draws:
    """What `reference.draw` gives, for tensors of any device."""
    (nodes, draws), blocks = uniforms.shape, BlockDraws(probs.unsqueeze(0).cpu())
    tokens, chances = np.full((nodes, draws), -1), np.zeros((nodes, draws))
    left = np.zeros((nodes, draws + 1))
    for node in np.flatnonzero(limits >= 0).tolist():
        _check(blocks.left[0, node])
        one, count = np.array([node]), limits[node]
        drawn = blocks.draw(np.zeros_like(one), one, uniforms[one, :count])
        tokens[node, :count], chances[node, :count], left[node, :count] = (of[0] for of in drawn)
        left[node, count:] = blocks.left[0, node]
    return Draws(tokens, chances, left)


def _check(total: float) -> None:
    if not 0 <= total < np.inf:
        raise unsound(float(total))


def _first_of(weights: NDArray[np.float64], heights: NDArray[np.float64], bound: float) -> int:
    """The first entry with weight whose height exceeds the bound; rounding may leave none, and the last
    entry with weight is meant then."""
    first = int(heights.searchsorted(bound, side="right"))
    return first if first < len(weights) and weights[first] > 0 else int(np.flatnonzero(weights)[-1])


def _first_above(
    weights: NDArray[np.float64], heights: NDArray[np.float64], bounds: NDArray[np.float64]
) -> NDArray[np.intp]:
    """`_first_of` for every row."""
    above = (heights > bounds) & (weights > 0)
    first = above.argmax(1)
    last = weights.shape[1] - 1 - (weights[:, ::-1] > 0).argmax(1)
    chosen: NDArray[np.intp] = np.where(above[np.arange(len(first)), first], first, last)
    return chosen
