"""Keys and values of a head during decoding: the text's are kept, and the draft's written over."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.strategies.heads.pairs import HeadsAndWidth

SCRATCH, TEXT = 64, 256
"""Slots for which there is room at first."""


class PairCache:
    """Slots of keys and values, each `[rows, heads, slots, width]`.

    Keys and values may differ in heads and width.

    Heads of a second layer follow the first layer's.

    The first `scratch` slots of a row are for drafted pairs, by request number; the root's, whose pair
    belongs to the text, takes the padding of a pass. One slot for every pair of the text follows.
    """

    def __init__(self, rows: int, *, kept: tuple[HeadsAndWidth, HeadsAndWidth], like: Tensor) -> None:
        """`rows` empty rows for keys and values of the shapes `kept`, of the dtype and device of `like`."""
        self.scratch, self.text = SCRATCH, TEXT
        self.keys, self.values = (like.new_zeros(rows, heads, SCRATCH + TEXT, width) for heads, width in kept)

    def reserve(self, *, scratch: int, text: int) -> None:
        """Have room for so many drafted pairs, and pairs of the text, in every row."""
        if scratch <= self.scratch and text <= self.text:
            return
        self._resize(
            self.scratch if scratch <= self.scratch else max(scratch, 2 * self.scratch),
            self.text if text <= self.text else max(text, 2 * self.text),
        )

    def _resize(self, scratch: int, text: int) -> None:
        self.keys, self.values = (self._widened(old, scratch, text) for old in (self.keys, self.values))
        self.scratch, self.text = scratch, text

    def _widened(self, old: Tensor, scratch: int, text: int) -> Tensor:
        # Zeros: a slot that nobody sees still takes part in a product, with a weight of zero.
        wide = old.new_zeros(*old.shape[:2], scratch + text, old.shape[3])
        wide[:, :, : self.scratch] = old[:, :, : self.scratch]
        wide[:, :, scratch : scratch + self.text] = old[:, :, self.scratch :]
        return wide

    def write(
        self, keys: Tensor, values: Tensor, rows: Tensor, slots: Tensor, *, heads: slice = slice(None)
    ) -> None:
        """Put `[..., heads, width]` at these `rows` and `slots`, each `[...]`, as these of the heads."""
        for held, new in ((self.keys, keys), (self.values, values)):
            held.transpose(1, 2)[rows, slots, heads] = new

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, and forget the others."""
        self.keys, self.values = self.keys[list(rows)], self.values[list(rows)]

    def join(self, other: PairCache) -> None:
        """Append the rows of `other`."""
        scratch, text = max(self.scratch, other.scratch), max(self.text, other.text)
        for cache in (self, other):
            cache._resize(scratch, text)
        self.keys = torch.cat([self.keys, other.keys])
        self.values = torch.cat([self.values, other.values])
