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
        tokens, chances: the first draws, int64 and float64 `[nodes, draws]`: -1 and 0 where there is none.
        before: float64 `[nodes, draws]`, the weight left before each of them.
        left: float64 `[nodes]`, the weight that is left to draw from at every node.
        drawn: int64 `[nodes]`, how many draws every node has had.
    """

    def __init__(
        self, probs: Tensor, limits: NDArray[np.int64], uniforms: NDArray[np.float64], *, room: int = 1
    ) -> None:
        """Sum the weights, and draw the first children.

        Args:
            probs: `[nodes, vocab]`, float32 or float64 on the CPU.
            limits: `[nodes]`, first draws of each node; one below 0 is not looked at and has no weight.
            uniforms: `[nodes, draws]`, one for each of them.
            room: draws of a node, 1 or more, for which there is room at once.
        """
        nodes, vocab = probs.shape
        self._probs, self._sums = probs.numpy(), np.empty((nodes, (vocab + BLOCK - 1) // BLOCK))
        self.left, self.drawn = np.zeros(nodes), np.zeros(nodes, np.int64)
        self._earlier = np.empty((nodes, max(uniforms.shape[1], room)), np.int64)
        # The arguments of a draw of one child, which change from one to the next.
        self._node, self._uniform = np.zeros(1, np.int64), np.zeros((1, 1))
        self.tokens, self.chances, self.before = _drawn(
            self._probs,
            self._sums,
            self.left,
            self._earlier,
            self.drawn,
            np.arange(nodes),
            limits,
            np.ascontiguousarray(uniforms),
            True,
        )

    def draw_one(self, node: int, uniform: float) -> tuple[int, float]:
        """The next child of one node and its weight; -1 and 0 where there is none."""
        if self.drawn.item(node) == (room := self._earlier.shape[1]):
            self._earlier = np.pad(self._earlier, ((0, 0), (0, room)))
        self._node[0], self._uniform[0, 0] = node, uniform
        tokens, chances, _ = _drawn(
            self._probs,
            self._sums,
            self.left,
            self._earlier,
            self.drawn,
            self._node,
            _ONE,
            self._uniform,
            False,
        )
        return tokens.item(), chances.item()


_ONE = np.ones(1, dtype=np.int64)


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
    first: bool,
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Draws the next `limits[i]` children of every node `nodes[i]`; no node may occur twice.

    Args:
        probs: `[nodes, vocab]`.
        sums: `[nodes, blocks]`, the weight that is left in every block.
        left: `[nodes]`, the weight that is left.
        earlier: `[nodes, most]`, the tokens that were drawn.
        drawn: `[nodes]`, how many of them.
        nodes, limits: `[n]`.
        uniforms: `[n, draws]`, one for each draw.
        first: whether nothing was drawn, and the weights are to be summed.

    Returns:
        Tokens (-1 where there is none), their weights, and the weight left before each, in the shape of
        `uniforms`.
    """
    tokens, chances = np.full(uniforms.shape, -1), np.zeros(uniforms.shape)
    before, weights = np.zeros(uniforms.shape), np.empty(BLOCK)
    for index in range(len(nodes)):
        node = nodes[index]
        if first and limits[index] >= 0:
            for block in range(sums.shape[1]):
                of_block = 0.0
                for entry in range(block * BLOCK, min(probs.shape[1], (block + 1) * BLOCK)):
                    of_block += probs[node, entry]
                sums[node, block] = of_block
                left[node] += of_block
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
    blocks = BlockDraws(probs.cpu(), limits, uniforms)
    if not np.isfinite(blocks.left).all():
        raise unsound(float(blocks.left[~np.isfinite(blocks.left)][0]))
    left = np.concatenate([blocks.before, np.zeros((len(limits), 1))], 1)
    after = np.arange(left.shape[1]) >= blocks.drawn[:, None]
    return Draws(blocks.tokens, blocks.chances, np.where(after, blocks.left[:, None], left))
