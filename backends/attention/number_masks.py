"""Masks of numbers, which attention adds to its scores: 0 for what is seen, a very low number elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.nodes.buckets import Shape
from draftwood.backends.nodes.pass_inputs import Held, Inputs, PassInputs
from draftwood.backends.nodes.region import unpacked

Masks = Tensor | dict[str, Tensor] | None
"""What `attention_mask=` takes: one mask, or one for every kind of layer; None for a model without any."""


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
    ) -> None:
        """Masks for layers of these kinds, in the model's dtype, where token ids go."""
        self.attention: AbstractContextManager[None] = attention or nullcontext()
        self._kinds = tuple(kinds)
        self.names = [f"visible of {kind}" for kind in kinds]
        self._seen = torch.zeros((), dtype=dtype, device=device)
        # Not -inf: padding that sees nothing must not turn into NaN.
        self._unseen = torch.full_like(self._seen, torch.finfo(dtype).min)

    def arrays(self, inputs: PassInputs, room: Shape | None) -> Held:
        """Returns the slots that nodes see, by kind bool `[rows, 1, nodes, slots]`; text comes first."""
        exact, held = inputs.shape, dict[str, NDArray[Any]]()
        base, columns = exact.text, exact.columns
        for name, bits, first in zip(self.names, inputs.bits, inputs.first, strict=True):
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
            whole = bits is inputs.staged.bits
            real[..., base : base + columns] = inputs.staged.visible if whole else unpacked(bits, columns)
            held[name] = visible
        return held

    def of(self, visible: Inputs, _: Shape) -> tuple[Masks, tuple[()]]:
        """Masks `[rows, 1, nodes, slots]`, and no masks of bits; `visible` are `arrays` on the device."""
        masks = {}
        for kind, name in zip(self._kinds, self.names, strict=True):
            masks[kind] = torch.where(visible[name], self._seen, self._unseen)
        if len(masks) > 1:
            return masks, ()
        return (masks[kind] if masks else None), ()
