"""Masks of numbers, which attention adds to its scores: 0 for what is seen, a very low number elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from operator import le
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.backends.nodes.buckets import Shape
from draftwood.backends.nodes.pass_inputs import Held, Inputs, PassInputs
from draftwood.backends.nodes.region import unpacked

Masks = Tensor | dict[str, Tensor] | None
"""What `attention_mask=` takes: one mask, or one for every kind of layer; None for a model without any."""


STANDING = 2**20
"""Numbers of a mask up to which it is a piece of a standing one."""


class NumberMasks:
    """Additive masks, for attention that reads any mask.

    Additive because eager attention adds any mask, so that a bool mask is silently wrong there, and because
    SDPA on a CPU converts a bool mask anew in every layer.

    Attributes:
        attention: inside it the model attends by these masks.
        names: by which `arrays` gives what is visible, for every kind.
    """

    def __init__(
        self,
        kinds: Sequence[str],
        *,
        dtype: torch.dtype,
        device: torch.device,
        attention: AbstractContextManager[None] | None = None,
        standing: bool = False,
    ) -> None:
        """Masks for layers of these kinds, in the model's dtype, where token ids go.

        If `standing`, a mask on a CPU may be a piece of a standing one, valid until the next pass.
        """
        self.attention: AbstractContextManager[None] = attention or nullcontext()
        self._kinds = tuple(kinds)
        self.names = [f"visible of {kind}" for kind in kinds]
        self._seen = torch.zeros((), dtype=dtype, device=device)
        # Not -inf: padding that sees nothing must not turn into NaN.
        self._unseen = torch.full_like(self._seen, torch.finfo(dtype).min)
        names = self.names if standing and device.type == "cpu" else ()
        self._standing = {name: _StandingMask(self._unseen) for name in names}

    def arrays(self, inputs: PassInputs, room: Shape | None) -> Held:
        """Returns the slots that nodes see, by kind bool `[rows, 1, nodes, slots]`; text comes first.

        Of a standing mask its numbers, where all of the text is seen: bfloat16 as integers of the same bits.
        """
        exact, held = inputs.shape, Held()
        base, columns = exact.text, exact.columns
        standing = room is None and not inputs.ragged and bool(self._standing)
        standing = standing and exact.rows * exact.nodes * base <= STANDING
        for name, bits, first in zip(self.names, inputs.bits, inputs.first, strict=True):
            whole = bits is inputs.staged.bits
            if standing and whole and first is None:
                one, visible = self._standing[name], inputs.staged.visible
                if not (base <= one.text and all(map(le, visible.shape, one.size))):
                    one.make_room(visible.shape, text=base)
                start, (rows, nodes, _) = one.text, visible.shape
                one.numbers[:rows, 0, :nodes, start : start + columns] = np.where(visible, 0, one.unseen)
                held[name] = one.numbers[:rows, :, :nodes, start - base : start + columns]
                continue
            if room is None:
                visible = np.empty((len(bits), 1, exact.nodes, base + columns), np.bool_)
            else:
                visible = np.zeros((room.rows, 1, room.nodes, room.slots), np.bool_)
                # Padding sees itself, since softmax needs something.
                own = np.arange(room.nodes)
                visible[..., own, inputs.start + own] = True
            real = visible[: len(bits), 0, : exact.nodes]
            text: Any = True
            if inputs.ragged or first is not None:
                read = np.arange(base)
                text = read < inputs.lengths[:, None, None]
                if first is not None:
                    slots = read if inputs.reads is None else inputs.reads[:, None]
                    text = text & (slots >= first[:, :, None])
            real[..., :base] = text
            real[..., base : base + columns] = inputs.staged.visible if whole else unpacked(bits, columns)
            held[name] = visible
        return held

    def of(self, visible: Inputs, _: Shape) -> tuple[Masks, tuple[()]]:
        """Masks `[rows, 1, nodes, slots]`, and no masks of bits; `visible` are `arrays` on the device."""
        masks = {}
        for kind, name in zip(self._kinds, self.names, strict=True):
            seen = visible[name]
            made = seen.dtype != torch.bool
            if made:
                masks[kind] = seen if seen.dtype == self._seen.dtype else seen.view(self._seen.dtype)
            else:
                masks[kind] = torch.where(seen, self._seen, self._unseen)
        if len(masks) > 1:
            return masks, ()
        return (masks[kind] if masks else None), ()


class _StandingMask:
    """An array of which masks are pieces, for nodes that see all of a text.

    Whatever the length of the text, its slots are 0 there, and only what nodes see of nodes is written. A
    mask is valid until the next one.

    Attributes:
        unseen: the number for a node that is not seen, or its bits.
        text: slots of a text, at most.
        size: rows, nodes, and columns of nodes, at most.
        numbers: `[rows, 1, nodes, text + columns]`.
    """

    def __init__(self, unseen: Tensor) -> None:
        """No room for any mask; they will hold `unseen`, a number, where nodes do not see a node."""
        # numpy has no bfloat16.
        self.unseen = (unseen.view(torch.int16) if unseen.dtype == torch.bfloat16 else unseen).numpy()
        self.text, self.size = 0, (0, 0, 0)
        self.numbers = np.zeros((0, 1, 0, 0), self.unseen.dtype)

    def make_room(self, size: Sequence[int], *, text: int) -> None:
        """Have room for so many rows, nodes and columns after a text, and for what there was room for."""
        self.text = max(self.text, text + text // 2)
        rows, nodes, columns = map(max, size, self.size)
        self.size = rows, nodes, columns
        self.numbers = np.zeros((rows, 1, nodes, self.text + columns), self.unseen.dtype)
