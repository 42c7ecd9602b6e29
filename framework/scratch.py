"""Standing memory for the distributions of a round."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor


class Scratch:
    """Memory that is handed out piece by piece and all taken back at once.

    Fresh memory of the size of a vocabulary times a tree costs more to touch than to compute with.
    """

    def __init__(self) -> None:
        self._storage: dict[tuple[torch.dtype, torch.device], Tensor] = {}
        self._used: dict[tuple[torch.dtype, torch.device], int] = {}

    def take(self, shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """A contiguous tensor of any content; nobody else has it before the next `reset`."""
        key, size = (dtype, device), prod(shape)
        start = self._used.get(key, 0)
        storage = self._storage.get(key)
        if storage is None or start + size > len(storage):
            # What was handed out keeps the old storage alive until nobody needs it.
            have = 0 if storage is None else len(storage)
            storage = torch.empty(max(start + size, 2 * have), dtype=dtype, device=device)
            self._storage[key] = storage
        self._used[key] = start + size
        return storage[start : start + size].view(shape)

    def reset(self) -> None:
        """Take everything back: what was handed out may be overwritten from now on."""
        self._used.clear()
