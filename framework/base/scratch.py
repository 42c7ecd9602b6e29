"""Standing memory for the distributions of a round."""

from __future__ import annotations

import math

import attrs
import torch
from torch import Tensor

REMEMBERED = 256
"""Tensors that are kept to be handed out again."""


class Scratch:
    """Memory that is handed out piece by piece and all taken back at once.

    Fresh memory of the size of a vocabulary times a tree costs more to touch than to compute with.
    """

    def __init__(self) -> None:
        self._pieces: dict[tuple[torch.dtype, torch.device], _Piece] = {}

    def take(self, shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A contiguous tensor of any content; nobody else has it before the next `reset`."""
        size, piece = math.prod(shape), self._pieces.get((dtype, device))
        if piece is None or piece.used + size > piece.size:
            # What was handed out keeps the old storage alive until nobody needs it.
            have, used = (0, 0) if piece is None else (piece.size, piece.used)
            storage = torch.empty(max(used + size, 2 * have), dtype=dtype, device=device)
            piece = self._pieces[dtype, device] = _Piece(storage, storage.numel(), used)
        place = piece.used, shape
        taken = piece.views.get(place)
        if taken is None:
            taken = piece.views[place] = piece.storage[piece.used : piece.used + size].view(shape)
        piece.used += size
        return taken

    def reset(self) -> None:
        """Take everything back: tensors that were handed out may be overwritten from now on."""
        for piece in self._pieces.values():
            piece.used = 0
            if len(piece.views) > REMEMBERED:
                piece.views.clear()


@attrs.define(eq=False)
class _Piece:
    """Memory of one dtype on one device, and how much of it was handed out, in numbers.

    Attributes:
        views: the tensors that were handed out since the storage was made, by their start and shape. Rounds
            mostly take the same ones.
    """

    storage: Tensor
    size: int
    used: int
    views: dict[tuple[int, tuple[int, ...]], Tensor] = attrs.field(factory=dict)
