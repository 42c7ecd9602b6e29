"""Masks of numbers, which attention adds to its scores: 0 for what a node sees, a very low number elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from draftwood.backends.buckets import Shape
from draftwood.backends.pass_inputs import Held, Inputs, PassInputs, padded
from draftwood.backends.region import unpacked

Masks = Tensor | dict[str, Tensor] | None
"""What `attention_mask=` takes: one mask, or one for every kind of layer; None for a model without any."""


class NumberMasks:
    """Additive masks, for attention that reads any mask.

    Additive because eager attention adds any mask, so that a bool mask is silently wrong there, and because
    SDPA on a CPU converts a bool mask anew in every layer.

    Attributes:
        attention: inside it the model attends by these masks.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        *,
        dtype: torch.dtype,
        device: torch.device,
        attention: AbstractContextManager[None] | None = None,
    ) -> None:
        """Masks for layers of these kinds, in the model's dtype, where token ids go."""
        self.attention: AbstractContextManager[None] = attention or nullcontext()
        self._kinds = [(kind, f"visible of {kind}", f"first of {kind}") for kind in kinds]
        self._seen = torch.zeros((), dtype=dtype, device=device)
        # Not -inf: padding that sees nothing must not turn into NaN.
        self._unseen = torch.full_like(self._seen, torch.finfo(dtype).min)

    def arrays(self, inputs: PassInputs, room: Shape | None) -> Held:
        """Columns that nodes see, and where the text that they see begins and ends unless they see all of it."""
        held: Held = {}
        stop = inputs.staged.stop
        everything = room is None and not (inputs.lengths != inputs.base).any()
        for (_, visible, begins), bits, first in zip(self._kinds, inputs.bits, inputs.first, strict=True):
            seen = unpacked(bits, stop)
            if room is not None:
                # Padding sees itself, since softmax needs something.
                own = np.arange(room.nodes)
                place = np.zeros((room.rows, room.nodes, room.columns), np.bool_)
                place[:, own, inputs.staged.start + own] = True
                rows, nodes, columns = seen.shape
                place[:rows, :nodes, :columns] = seen
                held[visible] = place
                none = np.zeros((room.rows, room.nodes), np.int64)
                held[begins] = none if first is None else padded(first, none.shape)
            else:
                held[visible] = seen
                if first is not None:
                    held[begins] = first
                    everything = False
        if not everything and self._kinds:
            held["lengths"] = inputs.lengths if room is None else padded(inputs.lengths, (room.rows,))
        return held

    def of(self, tensors: Inputs, shape: Shape) -> tuple[Masks, tuple[()]]:
        """Masks `[rows, 1, nodes, slots]`, and no masks of bits.

        Args:
            tensors: what `arrays` gave, on the device.
            shape: of the pass, by which the arrays are padded.
        """
        if "at" in tensors:
            return self.additive({kind: self.visible(tensors, kind, shape) for kind, *_ in self._kinds}), ()
        masks = {}
        for kind, visible, begins in self._kinds:
            mask = torch.where(tensors[visible], self._seen, self._unseen)
            if "lengths" not in tensors:
                mask = pad(mask, (shape.text, 0))
            else:
                slots = torch.arange(shape.text, device=mask.device)
                text = slots < tensors["lengths"][:, None, None]
                if begins in tensors:
                    text = text & (slots >= tensors[begins].unsqueeze(2))
                text = torch.where(text, self._seen, self._unseen).expand(-1, mask.shape[1], -1)
                mask = torch.cat([text, mask], 2)
            masks[kind] = mask.unsqueeze(1)
        return (masks if len(masks) > 1 else next(iter(masks.values()), None)), ()

    def visible(self, tensors: Inputs, kind: str, shape: Shape) -> Tensor:
        """bool `[rows, nodes, slots]`, what nodes of a pass that stands see in layers of `kind`."""
        columns = tensors[f"visible of {kind}"]
        slots = torch.arange(shape.slots, device=columns.device)
        text = (slots < tensors["lengths"][:, None, None]) & (
            slots >= tensors[f"first of {kind}"].unsqueeze(2)
        )
        column = slots - tensors["at"]
        within = (column >= 0) & (column < shape.columns)
        return text | (columns[:, :, column.clamp(0, shape.columns - 1)] & within)

    def additive(self, visible: dict[str, Tensor]) -> Masks:
        """Masks of what is visible, bool `[rows, nodes, slots]` by kind."""
        masks = {
            kind: torch.where(seen, self._seen, self._unseen).unsqueeze(1) for kind, seen in visible.items()
        }
        return masks if len(masks) > 1 else next(iter(masks.values()), None)
