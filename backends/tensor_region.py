"""The uncommitted region in tensors on the device of the model, which are never read back before a commit."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.backends.region import Region, Staged
from draftwood.backends.validation import check_path


def in_heavy_paths(staged: Staged) -> Staged:
    """The same nodes with their columns in preorder, the child of the largest subtree first.

    Paths then lie together, and fewer blocks of the mask hold anything (DySpec, appendix C). No step of it
    looks at the data.
    """
    n = staged.depths.shape[1]
    visible = staged.visible[:, :, -n:]
    below = visible.sum(1)  # how many nodes see each
    # Nodes below the committed state, or below nodes of earlier calls, are siblings here.
    parents = torch.where(visible.sum(2) == 1, -1, staged.parents)
    rank = below * n + torch.arange(n, device=visible.device)  # of equal subtrees the later comes first
    elder = (parents.unsqueeze(1) == parents.unsqueeze(2)) & (rank.unsqueeze(1) > rank.unsqueeze(2))
    steps = 1 + torch.where(elder, below.unsqueeze(1), 0).sum(2)  # from the parent's column
    columns = staged.start - 1 + torch.where(visible, steps.unsqueeze(1), 0).sum(2)
    order = columns.argsort(1)
    by_row = order.unsqueeze(2).expand_as(staged.visible)
    old, new = staged.visible.gather(1, by_row).tensor_split([-n], 2)
    new = new.gather(2, order.unsqueeze(1).expand_as(new))
    visible, depths = torch.cat([old, new], 2), staged.depths.gather(1, order)
    return Staged(staged.parents, staged.counts, visible, depths, columns)


class TensorRegion(Region):
    """A region whose `stage` and `accept` wait for no device."""

    reorders = True

    def __init__(self, rows: int, device: torch.device) -> None:
        self._rows, self._device = rows, device
        self.columns = 0
        self.counts = [0] * rows
        # Row 0 stands for "above the root" and sees nothing; row c + 1 holds what column c sees. Rows of
        # columns that are not taken yet are all False, which `stage` relies on.
        self._seen = torch.zeros(rows, 65, 64, dtype=torch.bool, device=device)
        self._depths = torch.zeros(rows, 64, dtype=torch.int64, device=device)
        self._parents: list[Tensor] = []
        self._calls: list[Sequence[int]] = []
        # Column of every region index; None while the two are the same.
        self._column_of: Tensor | None = None

    @property
    def depths(self) -> Tensor:
        """Depth of every column `[rows, columns]` int64."""
        return self._depths[:, : self.columns]

    def stage(self, parents: Tensor, counts: Sequence[int]) -> Staged:
        """What `parents` `[rows, nodes]` would add to the region."""
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
        moved = staged.columns is not None or any(count != n for count in staged.counts)
        if self._column_of is None and moved:
            self._column_of = torch.arange(self._depths.shape[1], device=self._device).repeat(self._rows, 1)
        if self._column_of is not None and staged.columns is not None:
            self._column_of.scatter_(1, self._next_indices(n), staged.columns)
        self.counts = [have + more for have, more in zip(self.counts, staged.counts, strict=True)]
        self.columns += n

    def clear(self) -> None:
        """Drop all nodes."""
        self._seen[:, : self.columns + 1, : self.columns] = False
        self.columns, self.counts = 0, [0] * self._rows
        self._parents, self._calls, self._column_of = [], [], None

    def keep(self, rows: Sequence[int]) -> None:
        """Keep these rows only, in this order."""
        index = torch.tensor(rows, dtype=torch.int64, device=self._device)
        self._rows = len(rows)
        self.counts = [self.counts[row] for row in rows]
        self._seen, self._depths = self._seen[index], self._depths[index]
        self._parents = [parents[index.to(parents.device)] for parents in self._parents]
        self._calls = [[counts[row] for row in rows] for counts in self._calls]
        if self._column_of is not None:
            self._column_of = self._column_of[index]

    def columns_of(self, paths: Sequence[Sequence[int]]) -> list[list[int]]:
        """Columns of the nodes of every row's path, or `InvalidTree` where one is no path from a root."""
        if not any(paths):
            return [[] for _ in paths]
        column_of = self._depths[:, :0] if self._column_of is None else self._column_of
        read = torch.cat([*self._parents, column_of], 1).tolist()
        columns = []
        for row, (path, numbers) in enumerate(zip(paths, read, strict=True)):
            parents: list[int] = []
            start = 0
            for call, counts in zip(self._parents, self._calls, strict=True):
                parents += numbers[start : start + counts[row]]
                start += call.shape[1]
            check_path(path, parents, row=row)
            columns.append(
                list(path) if self._column_of is None else [numbers[start + node] for node in path]
            )
        return columns

    def _to_columns(self, parents: Tensor, n: int) -> Tensor:
        if self._column_of is None:
            return parents
        new = torch.arange(n, device=self._device)
        self._column_of.scatter_(1, self._next_indices(n), (self.columns + new).expand(self._rows, n))
        return torch.where(parents < 0, -1, self._column_of.gather(1, parents.clamp(min=0)))

    def _next_indices(self, n: int) -> Tensor:
        """Region indices `[rows, n]` of the next `n` nodes of every row.

        Padding takes those behind the valid ones, which are the next call's.
        """
        start = torch.tensor(self.counts, device=self._device).unsqueeze(1)
        return start + torch.arange(n, device=self._device)

    def _close(self, visible: Tensor, above: Tensor) -> Tensor:
        """Let every new node see what its new ancestors see; `above` is the parent's new index + 1, or 0.

        The parent relation is squared until it spans n - 1 generations.
        """
        n = above.shape[1]
        self_or_parent = above.unsqueeze(-1) == torch.arange(1, n + 1, device=self._device)
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
