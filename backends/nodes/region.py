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

from collections.abc import Callable, Sequence
from functools import cache, cached_property, lru_cache, partial
from itertools import chain as joined
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from draftwood.backends.nodes.validation import check_parents, check_path, check_paths

Ints = NDArray[np.int64]
Bits = NDArray[np.uint32]

WORD = 32
"""Columns in a word of bits."""

REMEMBERED = 256
"""Results that are kept of calls that may come again."""

SMALL = 256
"""Nodes of all rows up to which results are kept."""


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

    What the nodes see is worked out when a later call asks: mostly a commit comes first.

    Attributes:
        columns: how many are taken, padding included.
        counts: nodes of every row, `[rows]`.
    """

    columns: int
    counts: Ints
    # By region index.
    _parents: Ints
    _places: Ints
    _memo: Memo
    # Bits and depths by column, one further on: entry 0 stands for the committed state, which sees nothing.
    _given: tuple[Bits, Ints] | None = None
    # The region before the last call, and what gives the call's nodes.
    _last: tuple[Region, Callable[[], Staged]] | None = None
    # Without nodes; None where this is it.
    _root: Region | None = None

    @classmethod
    def empty(cls, rows: int) -> Region:
        """Rows without nodes."""
        none, bits = np.zeros((rows, 0), np.int64), np.zeros((rows, 1, 0), np.uint32)
        seen = bits, np.full((rows, 1), -1)
        return cls(0, np.zeros(rows, np.int64), none, none, Memo(), seen)

    def cleared(self) -> Region:
        """The region without nodes."""
        return self._root or self

    @property
    def depths(self) -> Ints:
        """Depths of every column, `[rows, columns]`; of padding 0."""
        return self._seen[1][:, 1:]

    @cached_property
    def _seen(self) -> tuple[Bits, Ints]:
        if self._last is None:
            assert self._given is not None
            return self._given
        before, staged = self._last[0], self._last[1]()
        held, depths = before._seen
        rows, start = len(self.counts), 1 + staged.start
        bits = np.zeros((rows, 1 + self.columns, words(self.columns)), np.uint32)
        bits[:, :start, : held.shape[2]] = held
        bits[:, start:] = staged.bits
        return bits, np.concatenate([depths, staged.depths], 1)

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
        check_parents(parents, self.counts)
        rows, n = parents.shape
        start, width = self.columns, words(self.columns + n)
        # Entry n of every row stands for whatever is not in this call.
        bits = np.zeros((rows, n + 1, width), np.uint32)
        depths = np.zeros((rows, n + 1), np.int64)
        bits[:, :n] = own_bits(start + n, words=width)[start:]
        above = parents - self.counts[:, None]
        inside = above >= 0
        if start:
            row = np.arange(rows)[:, None]
            old = self._places[row, np.where(inside, 0, parents)] + 1
            old[inside | (parents < 0)] = 0
            held, deep = self._seen
            held = held[row, old, :width]
            bits[:, :n, : held.shape[2]] |= held
            depths[:, :n] = deep[row, old] + 1
        if inside.any():
            depths[:, :n][inside] = 1
            _close(bits.reshape(-1, width), depths.reshape(-1), np.where(inside, above, n))
        # The caller's array may be written again.
        staged = Staged(parents.copy(), counts, start, bits[:, :n], depths[:, :n])
        if parents.size <= SMALL:
            self._memo.keep(key, staged)
        return staged

    def accept(self, staged: Staged) -> Region:
        """The region with the nodes of `staged`, whose pass succeeded."""
        after: Region | None = self._memo.get(staged)
        if after is not None:
            return after
        after = self._with(staged.parents, staged.counts, staged.columns, lambda: staged)
        if after._parents.size <= SMALL:
            self._memo.keep(staged, after)
        return after

    def joined(self, parents: Ints, counts: Sequence[int]) -> Region:
        """The region with nodes whose pass is over, as `accept` gives it after `stage` of the same arguments.

        Raises:
            InvalidTree: a parent not before its child.
        """
        check_parents(parents, self.counts)
        return self._with(parents, counts, None, partial(self.stage, parents, counts))

    def _with(
        self, parents: Ints, counts: Sequence[int], columns: Ints | None, staged: Callable[[], Staged]
    ) -> Region:
        """The region with nodes in these `columns`, None for their order, and what `staged` says of them."""
        rows, n = parents.shape
        stop = self.columns + n
        # Padding takes the indices after the valid nodes, which are the next call's.
        row, index = np.arange(rows)[:, None], self.counts[:, None] + np.arange(n)
        above, places = np.zeros((2, rows, self._parents.shape[1] + n), np.int64)
        above[:, :-n], places[:, :-n] = self._parents, self._places
        above[row, index] = parents
        places[row, index] = np.arange(self.columns, stop) if columns is None else columns
        total, memo = self.counts + counts, self._memo
        return Region(stop, total, above, places, memo, last=(self, staged), root=self.cleared())

    def keep(self, rows: Sequence[int]) -> Region:
        """The region of these rows only, in this order."""
        empty = Region.empty(len(rows))
        if not self.columns:
            return empty
        at = np.array(rows, np.int64)
        parents, places = self._parents[at], self._places[at]
        bits, depths = self._seen
        seen = bits[at], depths[at]
        return Region(self.columns, self.counts[at], parents, places, Memo(), seen, root=empty)

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
        nodes = np.fromiter(joined.from_iterable(paths), np.int64)
        rows = np.arange(len(paths)).repeat(counts)
        steps = np.arange(len(nodes)) - (counts.cumsum() - counts)[rows]
        before = np.empty_like(nodes)
        before[1:] = nodes[:-1]
        before[steps == 0] = -1
        there = nodes.view(np.uint64) < self.counts[rows].view(np.uint64)  # negative ones are large
        if not there.all() or (self._parents[rows, nodes] != before).any():
            for row, (path, count) in enumerate(zip(paths, self.counts, strict=True)):
                check_path(path, self._parents[row, :count].tolist(), row=row)
        accepted = Accepted(rows, self._places[rows, nodes], counts, steps)
        if len(nodes) <= SMALL:
            self._memo.keep(key, accepted)
        return accepted


def _close(bits: Bits, depths: Ints, above: Ints) -> None:
    """Let every node see what its ancestors in this call see, and be as deep as they make it.

    Every step looks twice as far up, so that there are as many as bits in the depth.

    Args:
        bits: `[rows * (nodes + 1), words]`, changed in place.
        depths: `[rows * (nodes + 1)]`, changed in place: the steps up to `above`, or the depth.
        above: the parent `[rows, nodes]`, or `nodes` where it is not in this call.
    """
    rows, n = above.shape
    up = np.full((rows, n + 1), n)
    up[:, :n] = above
    up += np.arange(rows)[:, None] * (n + 1)
    up = up.reshape(-1)
    ends = up[n :: n + 1].repeat(n + 1)
    while (up != ends).any():
        bits |= bits.take(up, 0)
        depths += depths.take(up)
        up = up.take(up)
