"""A commit of KV rows in plain PyTorch; README.md has its definition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
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
    row, source, target = sent(np.array([rows, sources, targets], np.int64), arenas[0].device)
    for arena in arenas:
        arena[:, row, :, target] = arena[:, row, :, source]
