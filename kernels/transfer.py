"""Numbers of the host on their way to a device, by copies that nobody waits for."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor


def pinned(size: int, device: torch.device) -> Tensor:
    """Uint8 `[size]` on the host, from which a copy to `device` goes without waiting.

    Where such memory matters, torch hands it out anew only once the copies from it are done.
    """
    return torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")


def sent(numbers: NDArray[Any] | Tensor, device: torch.device) -> Tensor:
    """`numbers` of the host as a tensor on `device`; on the CPU over the same memory."""
    tensor = numbers if isinstance(numbers, Tensor) else torch.from_numpy(numbers)
    if device.type == "cpu":
        return tensor
    buffer = pinned(tensor.nbytes, device).view(tensor.dtype).view(tensor.shape)
    return buffer.copy_(tensor).to(device, non_blocking=True)
