"""A commit of KV rows in plain PyTorch; README.md says what it must keep."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def move(
    *, arenas: Sequence[Tensor], rows: Sequence[int], sources: Sequence[int], targets: Sequence[int]
) -> None:
    """Copy slot `sources[i]` of row `rows[i]` to slot `targets[i]`, reading all before writing any.

    Args:
        arenas: `[buffers, rows, kv_heads, slots, dim]` each, any dtype; changed in place.
        rows: of every move.
        sources: slots to read.
        targets: slots to write, no slot of a row twice.
    """
    for arena in arenas:
        row, source, target = torch.tensor([rows, sources, targets], device=arena.device)
        arena[:, row, :, target] = arena[:, row, :, source]
