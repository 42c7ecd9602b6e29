"""What the nodes of a pass see, worked out on the host, and masks of numbers made of it."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.masks import Reach
from draftwood.backends.region import Bits, Ints, packed, unpacked

Masks = Tensor | dict[str, Tensor] | None
"""What `attention_mask=` takes: one mask, or one for every kind of layer; None for a model without any."""


@attrs.frozen(eq=False)
class Visibility:
    """What the nodes of a pass see of the committed slots and of the uncommitted columns behind them.

    Attributes:
        kinds: names of the kinds of attention layers.
        bits: by kind, uint32 `[rows, nodes, words]`: the columns that a node sees.
        first: by kind, `[rows, nodes]`: the first committed slot that a node sees; None where it is 0.
        lengths: committed slots of every row, `[rows]`; what lies between them and `start` is a gap.
        start: the slot of column 0.
        columns: uncommitted columns, the new ones last.
    """

    kinds: tuple[str, ...]
    bits: tuple[Bits, ...]
    first: tuple[Ints | None, ...]
    lengths: Ints
    start: int
    columns: int

    @classmethod
    def of(
        cls,
        kinds: dict[str, Reach],
        bits: Bits,
        *,
        depths: Ints,
        queries: Ints,
        lengths: Ints,
        start: int,
        longest: int,
    ) -> Visibility:
        """By ancestry, and by the reach of every kind of layer.

        Args:
            kinds: of the model's attention layers.
            bits: uint32 `[rows, nodes, words]`, by ancestry alone.
            depths: of the columns before the new nodes', `[rows, columns]`.
            queries: positions `[rows, nodes]` of the new nodes.
            lengths: committed slots `[rows]`.
            start: the slot of column 0.
            longest: no position reaches this.
        """
        seen: list[Bits] = []
        first: list[Ints | None] = []
        for reach in kinds.values():
            if reach.limits(longest):
                columns = np.concatenate([depths + lengths[:, None], queries], 1)
                seen.append(bits & packed(reach.sees(queries, columns)))
                first.append(reach.first(queries))
            else:
                seen.append(bits)
                first.append(None)
        columns_there = depths.shape[1] + queries.shape[1]
        return cls(tuple(kinds), tuple(seen), tuple(first), lengths, start, columns_there)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """What `numbers` needs on the device."""
        held: dict[str, NDArray[Any]] = {
            f"visible of {kind}": unpacked(bits, self.columns)
            for kind, bits in zip(self.kinds, self.bits, strict=True)
        }
        held |= {
            f"first of {kind}": first
            for kind, first in zip(self.kinds, self.first, strict=True)
            if first is not None
        }
        if self._gaps or any(first is not None for first in self.first):
            held["lengths"] = self.lengths
        return held

    @property
    def _gaps(self) -> bool:
        """Whether a row is shorter than the longest."""
        return bool((self.lengths != self.start).any())

    def numbers(self, tensors: dict[str, Tensor], *, seen: Tensor, unseen: Tensor) -> Masks:
        """Additive masks `[rows, 1, nodes, slots]`.

        Additive because eager attention adds any mask, so that a bool mask is silently wrong there, and
        because SDPA on a CPU converts a bool mask anew in every layer.

        Args:
            tensors: `arrays` on the device.
            seen: what is added where a node sees a slot, a scalar 0 in the model's dtype.
            unseen: what is added elsewhere. Not -inf: padding that sees nothing must not turn into NaN.
        """
        masks = {}
        for kind in self.kinds:
            mask = torch.where(tensors[f"visible of {kind}"], seen, unseen)
            first = tensors.get(f"first of {kind}")
            if first is None and not self._gaps:
                mask = torch.nn.functional.pad(mask, (self.start, 0))
            else:
                slots = torch.arange(self.start, device=mask.device)
                text = slots < tensors["lengths"][:, None, None]
                if first is not None:
                    text = text & (slots >= first.unsqueeze(2))
                text = torch.where(text, seen, unseen).expand(-1, mask.shape[1], -1)
                mask = torch.cat([text, mask], 2)
            masks[kind] = mask.unsqueeze(1)
        return masks if len(masks) > 1 else next(iter(masks.values()), None)

    def packed_arrays(self) -> dict[str, NDArray[Any]]:
        """What masks of bits need on the device; see `TreeMask`."""
        rows, nodes, _ = self.bits[0].shape
        held: dict[str, NDArray[Any]] = {
            "lengths": self.lengths.astype(np.int32),
            "counts": np.full(rows, nodes, np.int32),
            "at": np.array([self.start], np.int32),
        }
        for kind, bits, first in zip(self.kinds, self.bits, self.first, strict=True):
            held[f"bits of {kind}"] = np.ascontiguousarray(bits).view(np.int32)
            held[f"first of {kind}"] = (
                np.zeros((rows, nodes), np.int32) if first is None else first.astype(np.int32)
            )
        return held
