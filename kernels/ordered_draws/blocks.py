"""Draws without replacement on a CPU, a few hundred numbers each; README.md has the derivation."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.kernels.ordered_draws.reference import Draws, unsound

BLOCK = 256
FEW = 3
"""Nodes that are drawn for one after another."""


class BlockDraws:
    """Children of many nodes, drawn one after another from weights that were summed once, in blocks.

    Attributes:
        left: float64 `[rows, nodes]`, the weight that is left to draw from at every node.
    """

    def __init__(self, probs: Tensor) -> None:
        """Sum the weights of `probs` `[rows, nodes, vocab]`, float32 or float64 on the CPU."""
        rows, nodes, vocab = probs.shape
        whole = vocab // BLOCK
        # In the weights' own dtype, whose rounding they have anyway: converting costs ten times as much.
        parts = [probs[..., : whole * BLOCK].view(rows, nodes, whole, BLOCK).sum(-1)] if whole else []
        if whole * BLOCK < vocab:
            parts.append(probs[..., whole * BLOCK :].sum(-1, keepdim=True))
        self._sums = (parts[0] if len(parts) == 1 else torch.cat(parts, -1)).double().numpy()
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
                    tokens[index, number], chances[index, number] = self.draw_one(row, node, u)
                    if tokens[index, number] < 0:
                        break
            return tokens, chances, left
        for number in range(uniforms.shape[1]):
            left[:, number] = self.left[rows, nodes]
            (live,) = np.nonzero(left[:, number] != 0)
            if not len(live):
                break
            drawn = self._draw_each(rows[live], nodes[live], uniforms[live, number])
            tokens[live, number], chances[live, number] = drawn
        return tokens, chances, left

    def draw_up_to(
        self, limits: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The first `limits[i, j]` children of every node, tokens (-1 where there is none) and weights.

        Nothing was drawn before. Both results have the shape of `uniforms` `[rows, nodes, most]`.
        """
        tokens, chances = np.full(uniforms.shape, -1), np.zeros(uniforms.shape)
        number = 0
        rows, nodes = np.nonzero((limits > 0) & (self.left > 0))
        while len(rows) > FEW:
            drawn = self._draw_each(rows, nodes, uniforms[rows, nodes, number])
            tokens[rows, nodes, number], chances[rows, nodes, number] = drawn
            number += 1
            rows, nodes = np.nonzero((limits > number) & (self.left > 0))
        for row, node in zip(rows.tolist(), nodes.tolist(), strict=True):
            for index in range(number, int(limits[row, node])):
                token, chances[row, node, index] = self.draw_one(row, node, float(uniforms[row, node, index]))
                if token < 0:
                    break
                tokens[row, node, index] = token
        return tokens, chances

    def draw_one(self, row: int, node: int, u: float) -> tuple[int, float]:
        """The next child of one node and its weight; -1 and 0 where no weight is left."""
        sums = self._sums[row, node]
        heights = sums.cumsum()
        total = float(heights[-1])
        if not 0 < total < np.inf:
            _check(total)
            return -1, 0.0
        block = _first_of(heights, u * total)
        start = block * BLOCK
        weights = self._block(row, node, start)
        within = weights.cumsum()
        first = _first_of(within, u * total - (float(heights[block - 1]) if block else 0.0))
        chance = float(weights[first])
        weights[first] = 0
        sums[block] = np.add.reduce(weights)
        self.left[row, node] = np.add.reduce(sums)
        self._drawn.setdefault((row, node), []).append(start + first)
        return start + first, chance

    def _draw_each(
        self, rows: NDArray[np.intp], nodes: NDArray[np.intp], uniforms: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """One child of each of these nodes, which all have weight left."""
        each = np.arange(len(rows))
        sums = self._sums[rows, nodes]
        heights = sums.cumsum(1)
        _check(heights[:, -1].sum())
        bounds = uniforms * heights[:, -1]
        block = _first_above(heights, bounds)
        below = np.where(block > 0, heights[each, block - 1], 0.0)
        weights = np.zeros((len(rows), BLOCK))
        named = list(zip(rows.tolist(), nodes.tolist(), strict=True))
        for values, (row, node), start in zip(weights, named, (block * BLOCK).tolist(), strict=True):
            found = self._block(row, node, start)
            values[: len(found)] = found
        first = _first_above(weights.cumsum(1), bounds - below)
        drawn, chances = block * BLOCK + first, weights[each, first]
        weights[each, first] = 0
        sums[each, block] = weights.sum(1)
        self._sums[rows, nodes] = sums
        self.left[rows, nodes] = sums.sum(1)
        for one, token in zip(named, drawn.tolist(), strict=True):
            self._drawn.setdefault(one, []).append(token)
        return drawn, chances

    def _block(self, row: int, node: int, start: int) -> NDArray[np.float64]:
        """The weights of a node's block without the tokens that were drawn."""
        weights = self._probs[row, node, start : start + BLOCK].astype(np.float64)
        for token in self._drawn.get((row, node), ()):
            if start <= token < start + BLOCK:
                weights[token - start] = 0
        return weights


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


def _first_of(heights: NDArray[np.float64], bound: float) -> int:
    """The first entry whose height exceeds the bound, which has weight; rounding may leave none, and the last
    entry with weight is meant then."""
    first = int(heights.searchsorted(bound, side="right"))
    return first if first < len(heights) else int(heights.searchsorted(heights[-1]))


def _first_above(heights: NDArray[np.float64], bounds: NDArray[np.float64]) -> NDArray[np.intp]:
    """`_first_of` for every row."""
    reached = np.minimum(bounds, np.nextafter(heights[:, -1], 0))
    first: NDArray[np.intp] = (heights > reached[:, None]).argmax(1)
    return first
