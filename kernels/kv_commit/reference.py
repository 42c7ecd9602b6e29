"""A commit of KV rows in one line of indexing; README.md has its definition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from draftwood.kernels.transfer import sent


def move(*, arenas: Sequence[Tensor], rows: ArrayLike, sources: ArrayLike, targets: ArrayLike) -> None:
    """Copy slot `sources[i]` of row `rows[i]` to slot `targets[i]`, reading all before writing any.

    Args:
        arenas: `[buffers, rows, kv_heads, slots, dim]` each, any dtype, on one device; changed in place.
        rows: of every move.
        sources: slots to read.
        targets: slots to write, no slot of a row twice.
    """
    if not arenas:
        return
    moves = np.array([rows, sources, targets], np.int64)
    for arena in arenas:
        held: Any = arena
        row, source, target = moves
        if arena.is_cpu:
            held = _bits(arena)  # numpy takes less than half of torch's time
        else:
            row, source, target = sent(moves, arena.device)
        held[:, row, :, target] = held[:, row, :, source]


def _bits(arena: Tensor) -> NDArray[Any]:
    """The memory of `arena` as integers, since numpy lacks some of its types."""
    integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return arena.view(integers[arena.element_size()]).numpy()
