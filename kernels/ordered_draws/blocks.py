"""Draws without replacement on a CPU, a few hundred numbers each; README.md has the derivation."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from draftwood.kernels.machine_code import compiled
from draftwood.kernels.ordered_draws.reference import Draws, unsound

BLOCK = 256


class BlockDraws:
    """Children of many nodes, drawn one after another from weights that were summed once, in blocks.

    Attributes:
        left: float64 `[nodes]`, the weight that is left to draw from at every node.
        drawn: int64 `[nodes]`, how many draws every node has had.
    """

    def __init__(self, probs: Tensor, *, most: int = 1) -> None:
        """Sum the weights of `probs` `[nodes, vocab]`, float32 or float64 on the CPU.

        There is room for `most` draws of a node at first.
        """
        self._probs = probs.numpy()
        self._sums, self.left = _summed(self._probs)
        self._tokens = np.empty((len(self.left), most), dtype=np.int64)
        self.drawn = np.zeros(len(self.left), dtype=np.int64)
        self._most_drawn = 0  # by any node; no node has had more

    def draw(
        self, nodes: NDArray[np.int64], limits: NDArray[np.int64], uniforms: NDArray[np.float64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """Draws the next `limits[i]` children of every node `nodes[i]`; no node may occur twice.

        Args:
            nodes, limits: `[n]`.
            uniforms: `[n, most]`, one for each draw.

        Returns:
            Tokens (-1 where there is none), their weights, and the weight left before each, in the shape of
            `uniforms`.
        """
        self._have_room(self._most_drawn + uniforms.shape[1])
        asked = (np.ascontiguousarray(one) for one in (nodes, limits, uniforms))
        return _drawn(self._probs, self._sums, self.left, self._tokens, self.drawn, *asked)

    def draw_one(self, node: int, uniform: float) -> tuple[int, float]:
        """The next child of one node and its weight; -1 and 0 where there is none."""
        self._have_room(max(self._most_drawn, int(self.drawn[node]) + 1))
        asked = np.array([node]), _ONE, np.array([[uniform]])
        tokens, chances, _ = _drawn(self._probs, self._sums, self.left, self._tokens, self.drawn, *asked)
        return tokens.item(), chances.item()

    def _have_room(self, draws: int) -> None:
        """Have room for so many draws of every node."""
        self._most_drawn = draws
        if draws > (room := self._tokens.shape[1]):
            self._tokens = np.pad(self._tokens, ((0, 0), (0, 2 * draws - room)))


_ONE = np.ones(1, dtype=np.int64)


@compiled
def _summed(probs: NDArray[np.float32]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The sums of the blocks of every node, `[nodes, blocks]`, and of the nodes."""
    nodes, vocab = probs.shape
    sums, left = np.empty((nodes, (vocab + BLOCK - 1) // BLOCK)), np.empty(nodes)
    for node in range(nodes):
        of_node = 0.0
        for block in range(sums.shape[1]):
            of_block = 0.0
            for entry in range(block * BLOCK, min(vocab, (block + 1) * BLOCK)):
                of_block += probs[node, entry]
            sums[node, block] = of_block
            of_node += of_block
        left[node] = of_node
    return sums, left


@compiled
def _drawn(
    probs: NDArray[np.float32],
    sums: NDArray[np.float64],
    left: NDArray[np.float64],
    earlier: NDArray[np.int64],
    drawn: NDArray[np.int64],
    nodes: NDArray[np.int64],
    limits: NDArray[np.int64],
    uniforms: NDArray[np.float64],
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """`BlockDraws.draw`; `earlier` `[nodes, most]` are the tokens that were drawn, `drawn` of each node."""
    tokens, chances = np.full(uniforms.shape, -1), np.zeros(uniforms.shape)
    before, weights = np.zeros(uniforms.shape), np.empty(BLOCK)
    for index in range(len(nodes)):
        node = nodes[index]
        for number in range(limits[index]):
            before[index, number] = left[node]
            if not left[node] > 0:
                break
            # The first entry whose height exceeds the bound has weight. Rounding may leave none, and the last
            # entry with weight is meant then.
            bound, height, below, block = uniforms[index, number] * left[node], 0.0, 0.0, 0
            for entry in range(sums.shape[1]):
                if sums[node, entry] > 0:
                    block, below = entry, height
                height += sums[node, entry]
                if height > bound:
                    break
            start = block * BLOCK
            size = min(BLOCK, probs.shape[1] - start)
            for entry in range(size):
                weights[entry] = probs[node, start + entry]
            for one in range(drawn[node]):
                if start <= earlier[node, one] < start + size:
                    weights[earlier[node, one] - start] = 0
            height, token = below, 0
            for entry in range(size):
                if weights[entry] > 0:
                    token = entry
                height += weights[entry]
                if height > bound:
                    break
            tokens[index, number], chances[index, number] = start + token, weights[token]
            earlier[node, drawn[node]] = start + token
            drawn[node] += 1
            # Afresh and never by subtraction, so that nothing is lost where one token has nearly all.
            weights[token] = 0
            of_block, of_node = 0.0, 0.0
            for entry in range(size):
                of_block += weights[entry]
            sums[node, block] = of_block
            for entry in range(sums.shape[1]):
                of_node += sums[node, entry]
            left[node] = of_node
    return tokens, chances, before


def draw(*, probs: Tensor, limits: NDArray[np.int64], uniforms: NDArray[np.float64]) -> Draws:
    """Draws as `reference.draw`, for tensors of any device."""
    blocks = BlockDraws(probs.cpu())
    seen = limits >= 0
    if not np.isfinite(blocks.left[seen]).all():
        raise unsound(float(blocks.left[seen][~np.isfinite(blocks.left[seen])][0]))
    limits = np.maximum(limits, 0)
    tokens, chances, before = blocks.draw(np.arange(len(limits)), limits, uniforms)
    left = np.concatenate([before, np.zeros((len(limits), 1))], 1)
    after = np.arange(left.shape[1]) >= blocks.drawn[:, None]
    return Draws(tokens, chances, np.where(after, np.where(seen, blocks.left, 0.0)[:, None], left))
