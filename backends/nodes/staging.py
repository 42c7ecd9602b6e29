"""Arrays of the host on their way to a device: all that a pass needs in one copy that nobody waits for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.kernels.transfer import pinned

Arrays = Mapping[str, NDArray[Any]]

ALIGNED = 16
"""Bytes that every array starts at a multiple of, which kernels ask for."""

DTYPES: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
}


@attrs.frozen
class Part:
    """Where one array lies in a buffer: bytes `[start, stop)`."""

    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: str


@attrs.frozen
class Layout:
    """Places of named arrays in one buffer of bytes.

    Attributes:
        parts: by name.
        size: bytes of the buffer.
    """

    parts: dict[str, Part]
    size: int

    @classmethod
    def of(cls, arrays: Arrays) -> Layout:
        """Returns the layout of arrays with these shapes and dtypes, one after the other."""
        parts, at = dict[str, Part](), 0
        for name, array in arrays.items():
            parts[name] = Part(at, at + array.nbytes, array.shape, array.dtype.name)
            at += -(-array.nbytes // ALIGNED) * ALIGNED
        return cls(parts, at)

    def arrays(self, buffer: Tensor) -> dict[str, NDArray[Any]]:
        """The arrays in `buffer`, uint8 on the host, over its memory."""
        held = buffer.numpy()
        return {
            name: held[part.start : part.stop].view(part.dtype).reshape(part.shape)
            for name, part in self.parts.items()
        }

    def read(self, buffer: Tensor) -> dict[str, Tensor]:
        """The arrays in `buffer`, uint8 on any device, as views of it."""
        return {
            name: buffer[part.start : part.stop].view(DTYPES[part.dtype]).view(part.shape)
            for name, part in self.parts.items()
        }


def send(arrays: Arrays, device: torch.device) -> dict[str, Tensor]:
    """`arrays` as tensors on `device`: on the CPU over the same memory, elsewhere by one copy."""
    if device.type == "cpu":
        tensors = {}
        for name, array in arrays.items():
            tensors[name] = torch.from_numpy(array)
        return tensors
    layout = Layout.of(arrays)
    buffer = pinned(layout.size, device)
    for name, place in layout.arrays(buffer).items():
        np.copyto(place, arrays[name], casting="no")
    return layout.read(buffer.to(device, non_blocking=True))
