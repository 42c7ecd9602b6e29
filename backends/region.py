"""The uncommitted region: which nodes every row holds beyond its committed state, and what they see.

A node has a *place*, its number among the row's own nodes, by which callers name it, and a *column*,
which all rows share: a call of n nodes takes n columns of every row, padding included. The two differ
only after a call whose rows had differing counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from draftwood.backends.checks import check_path


@attrs.frozen(eq=False)
class Staged:
    """Nodes about to join the region.

    Attributes:
        parents: as given, in places; `[rows, nodes]` int64.
        counts: valid nodes of every row.
        visible: bool `[rows, nodes, columns]` over all columns up to and including the new ones; a node
            sees itself and its ancestors.
        depths: `[rows, nodes]` int64; 0 where the parent is the committed state.
    """

    parents: Tensor
    counts: Sequence[int]
    visible: Tensor
    depths: Tensor


class Region:
    """The uncommitted nodes of all rows, in tensors that are never read back before a commit."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.rows, self.device = rows, device
        self.columns = 0
        self.counts = [0] * rows
        # Row 0 stands for "above the root" and sees nothing; row c + 1 holds what column c sees. Rows of
        # columns that are not taken yet are all False, which `stage` relies on.
        self._seen = torch.zeros(rows, 65, 64, dtype=torch.bool, device=device)
        self._depths = torch.zeros(rows, 64, dtype=torch.int64, device=device)
        self._parents: list[Tensor] = []
        self._calls: list[Sequence[int]] = []
        # Column of every place; None while they are the same.
        self._column_of: Tensor | None = None

    @property
    def depths(self) -> Tensor:
        """Depth of every column `[rows, columns]` int64."""
        return self._depths[:, : self.columns]

    def stage(self, parents: Tensor, counts: Sequence[int]) -> Staged:
        """What `parents` `[rows, nodes]` (places; -1 is the committed state) would add to the region."""
        start, n = self.columns, parents.shape[1]
        self._reserve(start + n)
        above = self._to_columns(parents, n) + 1
        index = above.unsqueeze(-1).expand(-1, -1, start + n)
        visible = self._seen[:, :, : start + n].gather(1, index)
        visible[:, :, start:].diagonal(dim1=1, dim2=2).fill_(True)
        if n > 1:
            visible = self._close(visible, (above - start).clamp_(min=0))
        return Staged(parents, counts, visible, visible.sum(-1) - 1)

    def accept(self, staged: Staged) -> None:
        """Take the staged nodes in; their pass succeeded."""
        start, n = self.columns, staged.parents.shape[1]
        self._seen[:, start + 1 : start + n + 1, : start + n] = staged.visible
        self._depths[:, start : start + n] = staged.depths
        self._parents.append(staged.parents)
        self._calls.append(staged.counts)
        if self._column_of is None and any(count != n for count in staged.counts):
            self._column_of = torch.arange(self._depths.shape[1], device=self.device).repeat(self.rows, 1)
        self.counts = [have + more for have, more in zip(self.counts, staged.counts, strict=True)]
        self.columns += n

    def clear(self) -> None:
        """Drop all nodes."""
        self._seen[:, : self.columns + 1, : self.columns] = False
        self.columns, self.counts = 0, [0] * self.rows
        self._parents, self._calls, self._column_of = [], [], None

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows only, in this order."""
        index = torch.tensor(rows, dtype=torch.int64, device=self.device)
        self.rows = len(rows)
        self.counts = [self.counts[row] for row in rows]
        self._seen, self._depths = self._seen[index], self._depths[index]
        self._parents = [parents[index.to(parents.device)] for parents in self._parents]
        self._calls = [[counts[row] for row in rows] for counts in self._calls]
        if self._column_of is not None:
            self._column_of = self._column_of[index]

    def columns_of(self, paths: Sequence[Sequence[int]]) -> list[list[int]]:
        """Columns of the nodes of every row's path, or `InvalidTree` where one is no path from a root."""
        calls = [call.tolist() for call in self._parents] if any(paths) else []
        columns = []
        for row, path in enumerate(paths):
            parents: list[int] = []
            taken: list[int] = []
            start = 0
            for call, counts in zip(calls, self._calls, strict=False):
                parents += call[row][: counts[row]]
                taken += range(start, start + counts[row])
                start += len(call[row])
            check_path(path, parents, row=row)
            columns.append([taken[node] for node in path])
        return columns

    def _to_columns(self, parents: Tensor, n: int) -> Tensor:
        if self._column_of is None:
            return parents
        start = torch.tensor(self.counts, device=self.device).unsqueeze(1)
        new = torch.arange(n, device=self.device).unsqueeze(0)
        # Padding of this call writes past the row's valid places; its next call overwrites that.
        self._column_of.scatter_(1, start + new, (self.columns + new).expand(self.rows, n))
        return torch.where(parents < 0, -1, self._column_of.gather(1, parents.clamp(min=0)))

    def _close(self, visible: Tensor, above: Tensor) -> Tensor:
        """Let every new node see what its new ancestors see; `above` is the parent's new index + 1, or 0.

        The parent relation is squared until it spans n - 1 generations.
        """
        n = above.shape[1]
        self_or_parent = above.unsqueeze(-1) == torch.arange(1, n + 1, device=self.device)
        self_or_parent.diagonal(dim1=1, dim2=2).fill_(True)
        reach = self_or_parent.float()
        for _ in range((n - 2).bit_length()):
            reach = (reach @ reach).clamp_(max=1.0)
        return (reach @ visible.float()) > 0

    def _reserve(self, columns: int) -> None:
        have = self._depths.shape[1]
        if columns <= have:
            return
        more = max(columns, 2 * have) - have
        pad = torch.nn.functional.pad
        self._seen = pad(self._seen, (0, more, 0, more))
        self._depths = pad(self._depths, (0, more))
        if self._column_of is not None:
            self._column_of = pad(self._column_of, (0, more))
