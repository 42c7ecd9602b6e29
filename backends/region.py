"""The uncommitted region: which nodes every row holds beyond its committed state, and what they see.

A node has two numbers. Its *region index* counts the row's own nodes since the last commit; callers name it
by that, and -1 stands for the committed state. Its *column* is shared by all rows: a call of n nodes takes n
columns of every row, padding included. The two differ only after a call whose rows had differing counts, or
whose columns were reordered. Keys and values of a column lie in one slot of their buffers (`kv`), as many
slots further on as there are committed ones before column 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import attrs
import torch
from torch import Tensor


@attrs.frozen(eq=False)
class Staged:
    """The nodes of one call, about to join the region.

    Attributes:
        parents: region indices `[rows, nodes]` int64, in the order of the call; -1 is the committed state.
        counts: valid nodes of every row.
        visible: bool `[rows, nodes, columns]` over all columns up to and including the new ones; a node
            sees itself and its ancestors. In column order.
        depths: `[rows, nodes]` int64, in column order; 0 where the parent is the committed state.
        columns: of the nodes in the order of the call, `[rows, nodes]` int64; None where the two orders
            are the same.
    """

    parents: Tensor
    counts: Sequence[int]
    visible: Tensor
    depths: Tensor
    columns: Tensor | None = None

    @property
    def start(self) -> int:
        """The first column of the call."""
        return self.visible.shape[2] - self.visible.shape[1]

    def in_columns(self, values: Tensor) -> Tensor:
        """`values` `[rows, nodes]` of the nodes in the order of the call, in column order."""
        if self.columns is None:
            return values
        return torch.empty_like(values).scatter_(1, self.columns - self.start, values)

    def in_call(self, values: Tensor) -> Tensor:
        """`values` `[rows, nodes, ...]` of the nodes in column order, in the order of the call."""
        if self.columns is None:
            return values
        rows = torch.arange(len(values), device=values.device).unsqueeze(1)
        return values[rows, (self.columns - self.start).to(values.device)]


class Region(Protocol):
    """The uncommitted nodes of all rows.

    Law: after any calls a region says what walking up the parents of the accepted nodes says. `stage` lets
    each new node see itself and its ancestors, by their columns, and nothing else; its depth is how many
    ancestors it has. What is staged and not accepted leaves no trace.

    Attributes:
        reorders: whether `accept` takes nodes whose columns are not in the order of their call.
        columns: how many are taken, padding included.
        counts: nodes of every row.
    """

    reorders: bool
    columns: int
    counts: list[int]

    @property
    def depths(self) -> Tensor:
        """Depth of every column `[rows, columns]` int64; of padding, any."""
        ...

    def stage(self, parents: Tensor, counts: Sequence[int]) -> Staged:
        """What a call would add to the region.

        Args:
            parents: region indices `[rows, nodes]` int64, each below its node's own; -1 is the committed
                state.
            counts: valid nodes of every row; the others are padding.
        """
        ...

    def accept(self, staged: Staged) -> None:
        """Take in the nodes that were staged last; their pass succeeded."""
        ...

    def clear(self) -> None:
        """Drop all nodes."""
        ...

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows only, in this order."""
        ...

    def columns_of(self, paths: Sequence[Sequence[int]]) -> list[list[int]]:
        """Columns of the nodes of every row's path, which names them by region index.

        Raises:
            InvalidTree: a path that does not start under the committed state or skips a parent.
        """
        ...
