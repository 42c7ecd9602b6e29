"""The uncommitted region of a model on the CPU, kept in Python integers.

Between two passes of a small model every tensor operation costs what it costs to call it, and `TensorRegion`
makes two dozen. This one makes two. On an accelerator parents may already be there, and reading them would
stall it; there `TensorRegion` stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood.backends.region import Region, Staged
from draftwood.backends.validation import check_path


@attrs.define
class HostRow:
    """Nodes of one row, by region index.

    Attributes:
        parents: -1 is the committed state.
        columns: the column each node takes.
        seen: columns that each node sees, one bit a column.
        depths: 0 where the parent is the committed state.
        column_depths: depth of every column, 0 for padding.
    """

    parents: list[int] = attrs.field(factory=list)
    columns: list[int] = attrs.field(factory=list)
    seen: list[int] = attrs.field(factory=list)
    depths: list[int] = attrs.field(factory=list)
    column_depths: list[int] = attrs.field(factory=list)

    def cut(self, nodes: int, columns: int) -> None:
        """Forget what came after so many nodes and columns."""
        for values in (self.parents, self.columns, self.seen, self.depths):
            del values[nodes:]
        del self.column_depths[columns:]


class HostRegion(Region):
    """A region whose columns stand in the order of the calls."""

    reorders = False

    def __init__(self, rows: int) -> None:
        self.columns = 0
        self.counts: list[int] = [0] * rows
        self._rows = [HostRow() for _ in range(rows)]

    @property
    def depths(self) -> Tensor:
        """Depth of every column `[rows, columns]` int64."""
        columns = self.columns
        return torch.tensor([row.column_depths[:columns] for row in self._rows]).view(
            len(self._rows), columns
        )

    def stage(self, parents: Tensor, counts: Sequence[int]) -> Staged:
        """What `parents` `[rows, nodes]` would add to the region."""
        start, n = self.columns, parents.shape[1]
        packed: list[bytes] = []
        size = (start + n + 7) // 8
        for row, above, have, count in zip(self._rows, parents.tolist(), self.counts, counts, strict=True):
            row.cut(have, start)
            for column, parent in enumerate(above[:count], start=start):
                in_region = parent >= 0
                row.parents.append(parent)
                row.columns.append(column)
                row.seen.append((row.seen[parent] if in_region else 0) | 1 << column)
                row.depths.append(row.depths[parent] + 1 if in_region else 0)
            row.column_depths += row.depths[have:] + [0] * (n - count)
            packed += [seen.to_bytes(size, "little") for seen in row.seen[have:]]
            packed += [(1 << column).to_bytes(size, "little") for column in range(start + count, start + n)]
        flat = np.frombuffer(b"".join(packed), dtype=np.uint8).reshape(len(self._rows), n, size)
        visible = np.unpackbits(flat, axis=-1, count=start + n, bitorder="little").view(np.bool_)
        depths = torch.tensor([row.column_depths[start:] for row in self._rows])
        return Staged(parents, counts, torch.from_numpy(visible), depths)

    def accept(self, staged: Staged) -> None:
        """Take the staged nodes in; their pass succeeded."""
        self.counts = [have + more for have, more in zip(self.counts, staged.counts, strict=True)]
        self.columns += staged.parents.shape[1]

    def clear(self) -> None:
        """Drop all nodes."""
        self.columns, self.counts = 0, [0] * len(self._rows)
        self._rows = [HostRow() for _ in self._rows]

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows only, in this order."""
        self.counts = [self.counts[row] for row in rows]
        self._rows = [self._rows[row] for row in rows]

    def columns_of(self, paths: Sequence[Sequence[int]]) -> list[list[int]]:
        """Columns of the nodes of every row's path, or `InvalidTree` where one is no path from a root."""
        for index, (row, path, have) in enumerate(zip(self._rows, paths, self.counts, strict=True)):
            row.cut(have, self.columns)
            check_path(path, row.parents, row=index)
        return [[row.columns[node] for node in path] for row, path in zip(self._rows, paths, strict=True)]
