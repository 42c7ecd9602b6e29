"""Keys and values that a block drafter keeps of committed texts, for all its layers, in standing memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from draftwood.strategies.blocks.head import BlockHead, KeysValues

CAPACITY = 256
"""Tokens of a text for which there is room at first."""


class Contexts:
    """The contexts of the rows of a call, which grow by what every row commits.

    Attributes:
        lengths: int64 `[rows]`, committed tokens of every row.
    """

    def __init__(self, head: BlockHead) -> None:
        """No rows yet; `head` makes keys and values, where its weights are."""
        self._head = head
        self.lengths: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self._held = self._blank(0, CAPACITY)

    def __len__(self) -> int:
        return len(self.lengths)

    def _blank(self, rows: int, capacity: int) -> Tensor:
        """Keys and values `[layers, 2, rows, capacity, key_value_heads, head_dim]`."""
        config = self._head.config
        # Zeros: a slot that nobody sees still takes part in a product, with a weight of zero.
        return self._head.fc.weight.new_zeros(
            len(config.causal), 2, rows, capacity, config.key_value_heads, config.head_dim
        )

    def join(self, rows: int) -> None:
        """Append so many rows without a text."""
        self.lengths = np.concatenate([self.lengths, np.zeros(rows, dtype=np.int64)])
        self._held = torch.cat([self._held, self._blank(rows, self._held.shape[3])], 2)

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, and forget the others."""
        self.lengths = self.lengths[list(rows)]
        self._held = self._held[:, :, list(rows)] if rows else self._blank(0, CAPACITY)

    def append(self, states: Sequence[Float[Tensor, "n hidden"]]) -> None:
        """Read what `head.project` made of the features that every row has committed, of all rows at once."""
        counts = np.array([len(some) for some in states], dtype=np.int64)
        if not counts.any():
            return
        rows = np.repeat(np.arange(len(counts)), counts)
        ends = self.lengths + counts
        # Tokens of all rows follow each other; each is reduced by the number that its row began with.
        places = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - ends, counts)
        self.lengths = ends
        self._reserve(int(ends.max()))
        new = self._head.context(torch.cat(list(states)), torch.from_numpy(places))
        there = torch.from_numpy(np.stack([rows, places])).to(self._held.device, non_blocking=True)
        self._held[:, :, there[0], there[1]] = torch.stack([torch.stack(of_layer) for of_layer in new])

    def _reserve(self, tokens: int) -> None:
        if tokens > (have := self._held.shape[3]):
            wide = self._blank(len(self), max(tokens, 2 * have))
            wide[:, :, :, :have] = self._held
            self._held = wide

    @property
    def known(self) -> KeysValues:
        """Keys and values of every layer `[rows, longest, key_value_heads, head_dim]`; zeros pad a row."""
        longest = int(self.lengths.max(initial=0))
        return [(keys[:, :longest], values[:, :longest]) for keys, values in self._held]
