"""Ragged trees over several passes, and tensors that lie in NaN, for the tests of scans along trees."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.kernels.checking import TOPOLOGIES
from draftwood.kernels.configuration import Configuration

KINDS = [torch.float32, torch.float16]


def trees(
    names: list[str], chance: random.Random, *, old: int, new: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What new nodes see, bool `[rows, new, columns]`, and a path, `[rows, columns]`; one row a name.

    Rows differ in how many of their `old` columns and `new` nodes are real; the rest see themselves alone.
    Some paths are empty.
    """
    rows, paths = [], []
    for place, name in enumerate(names):
        counts = (chance.randint(0, old), chance.randint(0, new)) if place else (old, new)
        columns = [*range(counts[0]), *range(old, old + counts[1])]
        seen = torch.eye(old + new, dtype=torch.bool)
        for column, parent in zip(columns, TOPOLOGIES[name](len(columns), chance), strict=True):
            if parent >= 0:
                seen[column] |= seen[columns[parent]]
        rows.append(seen[old:])
        last = chance.choice(columns) if columns and chance.random() < 0.8 else None
        paths.append(torch.zeros(old + new, dtype=torch.bool) if last is None else seen[last])
    return torch.stack(rows).to(device), torch.stack(paths).to(device)


def embedded(tensor: Tensor) -> Tensor:
    """The same numbers in the midst of NaN, or of True, with strides in multiples of 16."""
    *outer, last = tensor.shape
    shape = [*(size + 2 for size in outer), -(-last // 16) * 16 + 32]
    around = torch.full(shape, torch.nan if tensor.is_floating_point() else 1, device=tensor.device)
    inside = around.to(tensor.dtype)[(*(slice(1, size + 1) for size in outer), slice(16, 16 + last))]
    inside.copy_(tensor)
    return inside


@contextmanager
def guarded() -> Iterator[list[Configuration]]:
    """Launches write nothing but what is NaN in their `out`; gives the configurations launched so far."""
    launched: list[Configuration] = []
    launch = Configuration.launch

    def guard(self: Configuration, grid: tuple[int, ...], **arguments: Any) -> None:
        launched.append(self)
        out = arguments.get("out")
        if out is None:
            launch(self, grid, **arguments)
            return
        blank = out.isnan()
        assert blank.any()
        around = out.new_full((out.numel() + 256,), torch.nan)
        inside = around[128:-128].view(out.shape)
        inside.copy_(out)
        launch(self, grid, **arguments | {"out": inside})
        assert around[:128].isnan().all()
        assert around[-128:].isnan().all()
        assert torch.equal(inside[~blank], out[~blank])
        out.copy_(inside)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Configuration, "launch", guard)
        yield launched
