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

    On a CPU a draw is made when it is asked for. On a GPU one launch makes several for every node, with one
    small result read back; asking for more than those makes one more launch.

    Attributes:
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
        counts: Sequence[int] | NDArray[np.int64],
        *,
        at_once: int,
        floors: NDArray[np.float64] | None = None,
    ) -> None:
        """Draw nothing yet.

        Args:
            probs: weights, float32 or float64, which need not be normalised.
            noise: the nodes' streams.
            counts: nodes of every row; entries after them are padding.
            at_once: draws of a node that one launch makes.
            floors: `[rows, nodes]`; a launch stops at a node that has no more weight left than this. For who
                asks for no more children then.

        Raises:
            InvalidDistribution: a node's weights sum to NaN or infinity.
        """
        rows, nodes, vocab = probs.shape
        self._noise, self._floors, self._counts = noise, floors, np.array(counts)
        flat = probs.reshape(rows * nodes, vocab)
        if dispatch.serves(flat):
            self._blocks, self._flat = None, flat
            self._draw_on_device(at_once)
            self.left, self.drawn = self._left[..., 0].copy(), np.zeros((rows, nodes), dtype=np.int64)
        else:
            most = max(at_once, 1)
            self._blocks = blocks.BlockDraws(flat if flat.device.type == "cpu" else flat.cpu(), most=most)
            # As the blocks keep them, which they go on to do.
            self.left = self._blocks.left.reshape(rows, nodes)
            self.drawn = self._blocks.drawn.reshape(rows, nodes)
            if min(counts, default=nodes) < nodes:
                self.left[~self._valid(nodes)] = 0
            self._uniforms = noise.made if noise.made.shape[2] >= most else noise.uniforms(most)
        if not isfinite(whole := float(self.left.sum())):
            raise _unsound(whole)

    def next(
        self, wanted: tuple[NDArray[np.intp], ...], count: int = 1
    ) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
        """`count` more children of each of these nodes, named by rows and nodes, none of them twice.

        Returns:
            Tokens (-1 where no weight is left), their weights, and the weight left before each;
            `[nodes, count]`.
        """
        rows, nodes = wanted
        numbers = self.drawn[rows, nodes][:, None] + np.arange(count)
        most = int(numbers.max(initial=0)) + 1
        if self._blocks is not None:
            if most > self._uniforms.shape[2]:
                self._uniforms = self._noise.uniforms(2 * most)
            uniforms = self._uniforms[rows[:, None], nodes[:, None], numbers]
            flat = rows * self.left.shape[1] + nodes
            return self._blocks.draw(flat, np.full_like(flat, count), uniforms)
        self.drawn[rows, nodes] += count
        if (missing := most - self._tokens.shape[2]) > 0:
            if (self._tokens[rows, nodes, -1] >= 0).any():
                self._draw_on_device(2 * most)
            else:  # of these nodes nothing more is to come
                more = ((0, 0), (0, 0), (0, missing))
                self._tokens = np.pad(self._tokens, more, constant_values=-1)
                self._chances = np.pad(self._chances, more)
                self._left = np.pad(self._left, more, mode="edge")
        each = (rows[:, None], nodes[:, None], numbers)
        self.left[rows, nodes] = self._left[rows, nodes, numbers[:, -1] + 1]
        return self._tokens[each], self._chances[each], self._left[each]

    def next_of(self, row: int, node: int) -> tuple[int, float, float]:
        """One more child of one node: its token (-1 for none), its weight, and the weight left after it."""
        number = int(self.drawn[row, node])
        if self._blocks is not None:
            if number >= self._uniforms.shape[2]:
                self._uniforms = self._noise.uniforms(2 * number + 1)
            flat = row * self.left.shape[1] + node
            token, chance = self._blocks.draw_one(flat, self._uniforms[row, node, number])
            return token, chance, float(self.left[row, node])
        if number >= self._tokens.shape[2]:
            if self._tokens[row, node, -1] < 0:
                return -1, 0.0, 0.0
            self._draw_on_device(2 * number)
        self.drawn[row, node] += 1
        self.left[row, node] = left = float(self._left[row, node, number + 1])
        return int(self._tokens[row, node, number]), float(self._chances[row, node, number]), left

    def up_to(self, limits: NDArray[np.int64], most: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The first `limits[i, j]` children of every node, tokens and weights `[rows, nodes, most]`.

        The existing children come first; the tokens of the others are -1.
        """
        number = 0
        if self._blocks is not None and most:
            if most > self._uniforms.shape[2]:
                self._uniforms = self._noise.uniforms(most)
            uniforms = self._uniforms[..., :most].reshape(-1, most)
            tokens, chances, _ = self._blocks.draw(np.arange(limits.size), limits.reshape(-1), uniforms)
            return tokens.reshape(*limits.shape, most), chances.reshape(*limits.shape, most)
        tokens, chances = np.full((*limits.shape, most), -1), np.zeros((*limits.shape, most))
        while (open_ := (limits > number) & (self.left > 0)).any():
            # As many as the node that wants fewest of them still wants.
            stop = int(limits[open_].min())
            drawn = self.next(np.nonzero(open_), stop - number)
            tokens[open_, number:stop], chances[open_, number:stop] = drawn[:2]
            number = stop
        return tokens, chances

    def _valid(self, nodes: int) -> NDArray[np.bool_]:
        """Returns which of the first `nodes` nodes of every row are not padding, `[rows, nodes]`."""
        valid: NDArray[np.bool_] = np.arange(nodes) < self._counts[:, None]
        return valid

    def _draw_on_device(self, count: int) -> None:
        """The first `count` draws of every node, in one launch."""
        rows, nodes = len(self._counts), len(self._flat) // len(self._counts)
        floors = np.zeros(rows * nodes) if self._floors is None else self._floors.reshape(-1)
        try:
            draws = dispatch.draw_on_device(
                probs=self._flat,
                limits=np.where(self._valid(nodes), count, -1).reshape(-1),
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
    draws = ChildDraws(probs.unsqueeze(0), noise, [len(counts)], at_once=most)
    (tokens,), (chances,) = draws.up_to(np.array([counts]), most)
    lengths = (tokens >= 0).sum(1).tolist()
    rows = zip(tokens.tolist(), chances.tolist(), lengths, strict=True)
    return [(of_node[:length], weights[:length]) for of_node, weights, length in rows]
