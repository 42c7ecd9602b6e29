"""Draws without replacement for the nodes of all rows at once."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from draftwood.base.errors import InvalidDistribution
from draftwood.kernels.ordered_draws import blocks, dispatch  # kernels import nothing of ours
from draftwood.laws.randomness import NodeNoise, NodeStreams, Randomness, UniformRandomness


class ChildDraws:
    """Children of the nodes of a level, drawn one after another; each node has its own stream.

    The first are made at once. On a CPU each of the others is made when it is asked for. On a GPU one launch
    makes several for every node, with one small result read back; asking for more makes one more launch.

    Attributes:
        tokens, chances: of the first children, int64 and float64 `[rows, nodes, most]`: -1 and 0 where there
            is none.
        left: float64 `[rows, nodes]`, the weight that every node has left to draw from; 0 of padding.
        drawn: int64 `[rows, nodes]`, how many draws every node has had.
    """

    # Per launch: tokens, weights, and the weight left before each and after the last, `[rows, nodes, ...]`.
    _tokens: NDArray[np.int64]
    _chances: NDArray[np.float64]
    _left: NDArray[np.float64]

    def __init__(
        self,
        probs: Float[Tensor, "rows nodes vocab"],
        noise: NodeNoise,
        limits: NDArray[np.int64],
        *,
        most: int,
        ahead: int = 0,
        floors: NDArray[np.float64] | None = None,
    ) -> None:
        """Draw the first children of every node.

        Args:
            probs: weights, float32 or float64, which need not be normalised.
            noise: the nodes' streams.
            limits: `[rows, nodes]`, first children of every node; -1 for padding.
            most: the largest of `limits`.
            ahead: draws of a node that one launch makes, if these are more.
            floors: `[rows, nodes]`; a launch stops at a node that has no more weight left than this. For who
                asks for no more children then.

        Raises:
            InvalidDistribution: a node's weights sum to NaN or infinity.
        """
        rows, nodes, vocab = probs.shape
        self._noise, self._floors, self._limits = noise, floors, limits
        flat = probs.reshape(rows * nodes, vocab)
        if dispatch.serves(flat):
            self._blocks, self._flat = None, flat
            self._draw_on_device(max(most, ahead))
            self.left, self.drawn = self._left[..., 0].copy(), np.zeros((rows, nodes), dtype=np.int64)
            self.tokens, self.chances = self._first(most)
        else:
            made = noise.made if noise.made.shape[2] >= most else noise.uniforms(most)
            first, self._uniforms = made[..., :most].reshape(rows * nodes, most), made
            host = flat if flat.is_cpu else flat.cpu()
            self._blocks = drawn = blocks.BlockDraws(
                host, limits.reshape(-1), first, room=max(most, ahead, 1)
            )
            self.tokens = drawn.tokens.reshape(rows, nodes, most)
            self.chances = drawn.chances.reshape(rows, nodes, most)
            # As the blocks keep them, which they go on to do.
            self.left, self.drawn = drawn.left.reshape(rows, nodes), drawn.drawn.reshape(rows, nodes)
        # After a pass numpy's first sum takes twenty times as long as in a loop; Python's does not.
        if not isfinite(whole := sum(self.left.ravel().tolist())):
            raise _unsound(whole)

    def next_of(self, row: int, node: int) -> tuple[int, float, float]:
        """One more child of one node: its token (-1 for none), its weight, and the weight left after it."""
        number = self.drawn.item(row, node)
        if self._blocks is not None:
            if number >= self._uniforms.shape[2]:
                self._uniforms = self._noise.uniforms(2 * number + 1)
            flat = row * self.left.shape[1] + node
            token, chance = self._blocks.draw_one(flat, self._uniforms.item(row, node, number))
            return token, chance, self.left.item(row, node)
        if number >= self._tokens.shape[2]:
            if self._tokens[row, node, -1] < 0:
                return -1, 0.0, 0.0
            self._draw_on_device(2 * number)
        self.drawn[row, node] += 1
        self.left[row, node] = left = float(self._left[row, node, number + 1])
        return int(self._tokens[row, node, number]), float(self._chances[row, node, number]), left

    def _first(self, most: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The first `limits[i, j]` children of every node from what a launch drew; they count as drawn."""
        open_ = (np.arange(most) < self._limits[..., None]) & (self._tokens[..., :most] >= 0)
        self.drawn += open_.sum(-1)
        self.left[:] = np.take_along_axis(self._left, self.drawn[..., None], 2)[..., 0]
        return np.where(open_, self._tokens[..., :most], -1), np.where(open_, self._chances[..., :most], 0.0)

    def _draw_on_device(self, count: int) -> None:
        """The first `count` draws of every node, in one launch."""
        rows, nodes = self._limits.shape
        floors = np.zeros(rows * nodes) if self._floors is None else self._floors.reshape(-1)
        try:
            draws = dispatch.draw_on_device(
                probs=self._flat,
                limits=np.where(self._limits < 0, -1, count).reshape(-1),
                uniforms=self._noise.uniforms(count).reshape(rows * nodes, count),
                floors=floors,
            )
        except ValueError as error:
            raise InvalidDistribution(f"Cannot draw from the draft's distributions: {error}") from error
        self._tokens = draws.tokens.reshape(rows, nodes, count)
        self._chances = draws.chances.reshape(rows, nodes, count)
        self._left = draws.left.reshape(rows, nodes, count + 1)


def _unsound(total: float) -> InvalidDistribution:
    return InvalidDistribution(
        f"Cannot draw from weights that sum to {total:.3g}; check the logits for NaN or infinity."
    )


def drawn_together(
    probs: Float[Tensor, "nodes vocab"], counts: Sequence[int], rng: Randomness
) -> list[tuple[list[int], list[float]]] | None:
    """Tokens and chances of up to `counts[i]` children of every node i, as its stream draws them.

    None, with `rng` unchanged, where the stream cannot show its numbers in advance.
    """
    if not isinstance(rng, UniformRandomness):
        return None
    noise = NodeStreams([rng]).take([len(counts)])
    most = max(counts, default=0)
    draws = ChildDraws(probs.unsqueeze(0), noise, np.array([counts], np.int64), most=most)
    (tokens,), (chances,) = draws.tokens, draws.chances
    lengths = (tokens >= 0).sum(1).tolist()
    rows = zip(tokens.tolist(), chances.tolist(), lengths, strict=True)
    return [(of_node[:length], weights[:length]) for of_node, weights, length in rows]
