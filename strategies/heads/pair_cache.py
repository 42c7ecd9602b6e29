"""Keys and values of a head during decoding: the text's are kept, and the draft's written over."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.strategies.heads.pairs import HeadsAndWidth

SCRATCH, TEXT = 64, 256
"""Slots for which there is room at first."""


class PairCache:
    """Slots of keys, of values, and of the keys of an indexer, each `[rows, heads, slots, width]`.

    They may differ in heads and width.

    Heads of a second layer follow the first layer's.

    The first `scratch` slots of a row are for drafted pairs, by request number; the root's, whose pair
    belongs to the text, takes the padding of a pass. One slot for every pair of the text follows.
    """

    def __init__(self, rows: int, *, kept: Sequence[HeadsAndWidth], like: Tensor) -> None:
        """`rows` empty rows for tensors of the shapes `kept`, of the dtype and device of `like`."""
        self.scratch, self.text = SCRATCH, TEXT
        self.parts = [like.new_zeros(rows, heads, SCRATCH + TEXT, width) for heads, width in kept]

    def reserve(self, *, scratch: int, text: int) -> None:
        """Have room for so many drafted pairs, and pairs of the text, in every row."""
        if scratch <= self.scratch and text <= self.text:
            return
        self._resize(
            self.scratch if scratch <= self.scratch else max(scratch, 2 * self.scratch),
            self.text if text <= self.text else max(text, 2 * self.text),
        )

    def _resize(self, scratch: int, text: int) -> None:
        self.parts = [self._widened(old, scratch, text) for old in self.parts]
        self.scratch, self.text = scratch, text

    def _widened(self, old: Tensor, scratch: int, text: int) -> Tensor:
        # Zeros: a slot that nobody sees still takes part in a product, with a weight of zero.
        wide = old.new_zeros(*old.shape[:2], scratch + text, old.shape[3])
        wide[:, :, : self.scratch] = old[:, :, : self.scratch]
        wide[:, :, scratch : scratch + self.text] = old[:, :, self.scratch :]
        return wide

    def write(
        self, new: Tensor, part: int, rows: Tensor, slots: Tensor, *, heads: slice = slice(None)
    ) -> Tensor:
        """Put `[..., heads, width]` at these `rows` and `slots`, each `[...]`, as these heads of a part.

        Args:
            new: what is written.
            part: 0 for keys, 1 for values, 2 for the keys of an indexer.
            rows: where it is written.
            slots: likewise.
            heads: of the part.

        Returns:
            These heads of the part in all rows and slots.
        """
        self.parts[part].transpose(1, 2)[rows, slots, heads] = new
        return self.parts[part][:, heads]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows, and forget the others."""
        self.parts = [part[list(rows)] for part in self.parts]

    def join(self, other: PairCache) -> None:
        """Append the rows of `other`."""
        scratch, text = max(self.scratch, other.scratch), max(self.text, other.text)
        for cache in (self, other):
            cache._resize(scratch, text)
        self.parts = [torch.cat(both) for both in zip(self.parts, other.parts, strict=True)]
