"""The uncommitted region: which nodes every row holds beyond its committed state, and what they see.

A node has two numbers. Its *region index* counts the row's own nodes since the last commit; callers name it
by that, and -1 stands for the committed state. Its *column* is shared by all rows: a call of n nodes takes n
columns of every row, padding included. The two differ only after a call whose rows had differing counts, or
whose columns were reordered. Keys and values of a column lie in one slot of their buffers (`kv`), as many
slots further on as there are committed ones before column 0.

All of it is kept on the host, in arrays over all rows at once: what a device is told of a tree is worked out
here and sent, and nothing is read back.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, cached_property, lru_cache
from itertools import chain as joined
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from draftwood.backends.nodes.validation import check_parents, check_path, check_paths
from draftwood.kernels.machine_code import compiled

Ints = NDArray[np.int64]
Bits = NDArray[np.uint32]

WORD = 32
"""Columns in a word of bits."""

REMEMBERED = 256
"""Results that are kept of calls that may come again."""

SMALL = 256
"""Nodes of all rows up to which results are kept."""

_PARENT, _COLUMN, _DEPTH = range(3)
"""Numbers of a node in the region."""


def words(columns: int) -> int:
    """Words that hold so many columns."""
    return -(-columns // WORD)


def unpacked(bits: Bits, columns: int) -> NDArray[np.bool_]:
    """uint32 `[..., words]` as bool `[..., columns]`; bit j of word w is column 32 w + j."""
    flat = np.ascontiguousarray(bits).astype("<u4", copy=False).view(np.uint8)
    return np.unpackbits(flat, axis=-1, count=columns, bitorder="little").view(np.bool_)


def packed(seen: NDArray[np.bool_]) -> Bits:
    """bool `[..., columns]` as uint32 `[..., words]`."""
    size = words(seen.shape[-1]) * 4
    bits = np.zeros((*seen.shape[:-1], size), np.uint8)
    held = np.packbits(seen, axis=-1, bitorder="little")
    bits[..., : held.shape[-1]] = held
    return bits.view("<u4").astype(np.uint32, copy=False)


@attrs.frozen(eq=False)
class Staged:
    """The nodes of one call, about to join the region.

    Attributes:
        parents: region indices `[rows, nodes]`, in the order of the call; -1 is the committed state.
        counts: valid nodes of every row.
        start: the first column of the call.
        bits: uint32 `[rows, nodes, words]`, over all columns up to and including the new ones; a node sees
            itself and its ancestors. In column order.
        depths: `[rows, nodes]`, in column order; 0 where the parent is the committed state.
        columns: of the nodes in the order of the call, `[rows, nodes]`; None where the two orders are the
            same.
    """

    parents: Ints
    counts: Sequence[int]
    start: int
    bits: Bits
    depths: Ints
    columns: Ints | None = None

    @property
    def stop(self) -> int:
        """Returns the column after the last."""
        return self.start + int(self.bits.shape[1])

    @cached_property
    def visible(self) -> NDArray[np.bool_]:
        """bool `[rows, nodes, columns]`, the bits one by one."""
        return unpacked(self.bits, self.stop)

    def orders(self) -> dict[str, Ints]:
        """Where the two orders differ, how one is put into the other: indices into `[rows * nodes]`.

        `from call` takes what is in the order of the call into column order, `to call` the reverse.
        """
        if self.columns is None:
            return {}
        rows, n = self.columns.shape
        to_call = self.columns - self.start + np.arange(rows)[:, None] * n
        return {"from call": to_call.reshape(-1).argsort(), "to call": to_call.reshape(-1)}


@attrs.frozen(eq=False)
class Accepted:
    """Returns the nodes of every row's path, one row after the other.

    Attributes:
        rows: `[nodes]`, ascending.
        columns: `[nodes]`.
        counts: `[rows]`, nodes of every row's path.
        steps: `[nodes]`, how many nodes of its path precede each.
    """

    rows: Ints
    columns: Ints
    counts: Ints
    steps: Ints


@cache
def _identity(size: int) -> Bits:
    return packed(np.eye(size, dtype=np.bool_))


def own_bits(columns: int, *, words: int) -> Bits:
    """Returns uint32 `[columns, words]`: every column with only its own bit."""
    return _identity(max(256, 1 << (max(columns, words * WORD) - 1).bit_length()))[:columns, :words]


@lru_cache(16)
def chain(nodes: int) -> Staged:
    """One row of a chain of new nodes below the committed state, each of which sees all before it."""
    depths = np.arange(nodes)[None]
    return Staged(depths - 1, [nodes], 0, packed(np.tri(nodes, dtype=np.bool_))[None], depths)


class Memo(dict[Any, Any]):
    """Results of calls that may come again: a few shapes return in round after round, where rows are few."""

    def keep(self, key: Any, value: Any) -> None:
        """Keep `value` for a while."""
        if len(self) >= REMEMBERED:
            self.clear()
        self[key] = value


@attrs.frozen(eq=False)
class Region:
    """The uncommitted nodes of all rows, which do not change: `accept` gives another region.

    Law: after any calls a region says what walking up the parents of the accepted nodes says. `stage` lets
    each new node see itself and its ancestors, by their columns, and nothing else; its depth is how many
    ancestors it has. What is staged and not accepted leaves no trace.

    Attributes:
        columns: how many are taken, padding included.
        counts: nodes of every row, `[rows]`.
    """

    columns: int
    counts: Ints
    # By region index: the numbers of every node, `[3, rows, nodes]`, and its bits, `[rows, nodes, words]`.
    _nodes: Ints
    _bits: Bits
    _memo: Memo
    # Without nodes; None where this is it.
    _root: Region | None = None

    @classmethod
    def empty(cls, rows: int) -> Region:
        """Rows without nodes."""
        nodes, bits = np.zeros((3, rows, 0), np.int64), np.zeros((rows, 0, 0), np.uint32)
        return cls(0, np.zeros(rows, np.int64), nodes, bits, Memo())

    def cleared(self) -> Region:
        """The region without nodes."""
        return self._root or self

    @cached_property
    def depths(self) -> Ints:
        """Depths of every column, `[rows, columns]`; of padding 0."""
        depths = np.zeros((len(self.counts), self.columns), np.int64)
        row, index = (np.arange(self._nodes.shape[2]) < self.counts[:, None]).nonzero()
        depths[row, self._nodes[_COLUMN, row, index]] = self._nodes[_DEPTH, row, index]
        return depths

    def stage(self, parents: Ints, counts: Sequence[int]) -> Staged:
        """Returns the nodes that a call would add to the region.

        Args:
            parents: region indices `[rows, nodes]`, each below its node's own; -1 is the committed state.
            counts: valid nodes of every row; the others are padding, with parent -1.

        Raises:
            InvalidTree: a parent not before its child.
        """
        key = self, parents.tobytes(), tuple(counts)
        staged: Staged | None = self._memo.get(key)
        if staged is not None:
            return staged
        parents = parents.copy()  # The caller's array may be written again.
        bits, depths, wrong = _staged(parents, self.counts, self._nodes, self._bits, self.columns)
        if wrong:
            check_parents(parents, self.counts)
        staged = Staged(parents, counts, self.columns, bits, depths)
        if parents.size <= SMALL:
            self._memo.keep(key, staged)
        return staged

    def accept(self, staged: Staged) -> Region:
        """The region with the nodes of `staged`, if their pass succeeds."""
        after: Region | None = self._memo.get(staged)
        if after is not None:
            return after
        total = self.counts + np.array(staged.counts, np.int64)
        nodes, bits = _accepted(
            self._nodes,
            self._bits,
            self.counts,
            total,
            staged.parents,
            staged.columns,
            staged.depths,
            staged.bits,
            staged.start,
        )
        after = Region(staged.stop, total, nodes, bits, self._memo, self.cleared())
        if nodes[0].size <= SMALL:
            self._memo.keep(staged, after)
        return after

    def keep(self, rows: Sequence[int]) -> Region:
        """The region of these rows only, in this order."""
        empty = Region.empty(len(rows))
        if not self.columns:
            return empty
        at = np.array(rows, np.int64)
        nodes, bits = self._nodes.take(at, 1), self._bits[at]
        return Region(self.columns, self.counts[at], nodes, bits, Memo(), empty)

    def accepted(self, paths: Sequence[Sequence[int]]) -> Accepted:
        """Columns of the nodes of every row's path, which names them by region index.

        Raises:
            InvalidTree: another number of paths than of rows, or a path that does not start under the
                committed state or skips a parent.
        """
        key = self, tuple(map(tuple, paths))
        known: Accepted | None = self._memo.get(key)
        if known is not None:
            return known
        check_paths(paths, rows=len(self.counts))
        counts = np.array(list(map(len, paths)), np.int64)
        path = np.fromiter(joined.from_iterable(paths), np.int64)
        rows, columns, steps, wrong = _walked(path, counts, self._nodes, self.counts)
        if wrong >= 0:
            check_path(paths[wrong], self._nodes[_PARENT, wrong, : self.counts[wrong]].tolist(), row=wrong)
        accepted = Accepted(rows, columns, counts, steps)
        if len(path) <= SMALL:
            self._memo.keep(key, accepted)
        return accepted


@compiled
def _staged(parents: Ints, have: Ints, nodes: Ints, seen: Bits, start: int) -> tuple[Bits, Ints, bool]:
    """Bits and depths of the nodes of a call, and whether a parent of them is not before its child.

    Args:
        parents: region indices `[rows, nodes]`.
        have: nodes that every row has.
        nodes: numbers of these.
        seen: bits of these.
        start: the column of the first new node.
    """
    rows, n = parents.shape
    bits = np.zeros((rows, n, (start + n + WORD - 1) // WORD), np.uint32)
    depths = np.zeros((rows, n), np.int64)
    for row in range(rows):
        for node in range(n):
            parent, column = parents[row, node], start + node
            if not -1 <= parent < have[row] + node:
                return bits, depths, True
            if parent >= have[row]:
                above = parent - have[row]
                depths[row, node] = depths[row, above] + 1
                for word in range(bits.shape[2]):
                    bits[row, node, word] = bits[row, above, word]
            elif parent >= 0:
                depths[row, node] = nodes[_DEPTH, row, parent] + 1
                for word in range(seen.shape[2]):
                    bits[row, node, word] = seen[row, parent, word]
            bits[row, node, column // WORD] |= np.uint32(1) << np.uint32(column % WORD)
    return bits, depths, False


@compiled
def _accepted(
    nodes: Ints,
    seen: Bits,
    have: Ints,
    total: Ints,
    parents: Ints,
    columns: Ints | None,
    depths: Ints,
    bits: Bits,
    start: int,
) -> tuple[Ints, Bits]:
    """The numbers and bits of `have` nodes of every row, followed by new ones up to `total`.

    Args:
        nodes: numbers of the former.
        seen: their bits.
        have: how many they are.
        total: how many there will be.
        parents: of the new ones, in the order of their call.
        columns: of these; None for the order of the call.
        depths: of them in column order.
        bits: of them in column order.
        start: the first of these columns.
    """
    rows, room = len(have), 0
    for row in range(rows):
        room = max(room, total[row])
    after, sees = np.zeros((3, rows, room), np.int64), np.zeros((rows, room, bits.shape[2]), np.uint32)
    for row in range(rows):
        for index in range(have[row]):
            for number in range(3):
                after[number, row, index] = nodes[number, row, index]
            for word in range(seen.shape[2]):
                sees[row, index, word] = seen[row, index, word]
        for node in range(total[row] - have[row]):
            index, column = have[row] + node, node
            if columns is not None:
                column = columns[row, node] - start
            after[_PARENT, row, index], after[_COLUMN, row, index] = parents[row, node], start + column
            after[_DEPTH, row, index] = depths[row, column]
            for word in range(bits.shape[2]):
                sees[row, index, word] = bits[row, column, word]
    return after, sees


@compiled
def _walked(path: Ints, counts: Ints, nodes: Ints, have: Ints) -> tuple[Ints, Ints, Ints, int]:
    """Rows, columns and steps of the nodes of every row's path, one row after the other.

    And the first row whose path is none; -1 where all are.
    """
    rows, columns, steps = np.zeros_like(path), np.zeros_like(path), np.zeros_like(path)
    at = 0
    for row in range(len(counts)):
        last = -1
        for step in range(counts[row]):
            node = path[at]
            if not 0 <= node < have[row] or nodes[_PARENT, row, node] != last:
                return rows, columns, steps, row
            rows[at], columns[at], steps[at] = row, nodes[_COLUMN, row, node], step
            last, at = node, at + 1
    return rows, columns, steps, -1
