"""Growing the trees of all rows at once: the generators of a policy in lockstep, or arrays level by level."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar

import attrs
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from draftwood.errors import InvalidTree
from draftwood.proposals import Proposal
from draftwood.request import Request, Requests
from draftwood.tree import TokenTree
from draftwood.tree_batch import Nodes, TreeBatch

Number = TypeVar("Number", bound=np.generic)

RowGrowth = Generator[Requests, Float[Tensor, "rows nodes *drafters vocab"], Sequence[TokenTree]]
"""Yields requests of all rows and receives, padded alike, the draft distributions; returns the trees."""


def in_lockstep(growing: Sequence[Generator[Request, Tensor, TokenTree]]) -> RowGrowth:
    """The growths of all rows as one: in every call each row that is not finished asks."""
    trees: list[TokenTree | None] = [None] * len(growing)

    def advanced(row: int, probs: Tensor | None) -> Request | None:
        try:
            return next(growing[row]) if probs is None else growing[row].send(probs)
        except StopIteration as finished:
            trees[row] = _tree(finished.value)
            return None

    asked = [advanced(row, None) for row in range(len(growing))]
    while any(asked):
        probs = yield Requests.of(asked)
        asked = [
            None if request is None else advanced(row, probs[row, : len(request)])
            for row, request in enumerate(asked)
        ]
    return [tree for tree in trees if tree is not None]


def by_device(alone: Generator[Request, Tensor, TokenTree], together: RowGrowth) -> RowGrowth:
    """The growth of a single row: on a CPU by its own generator, elsewhere by arrays, which wait less.

    Both ask for the root first, draw nothing before, and give the same tree.
    """
    growing = in_lockstep([alone])
    probs = yield next(growing)
    if probs.device.type != "cpu":
        growing = together
        next(growing)
    while True:
        try:
            requests = growing.send(probs)
        except StopIteration as finished:
            return finished.value  # type: ignore[no-any-return]
        probs = yield requests


def _tree(grown: Any) -> TokenTree:
    if not isinstance(grown, TokenTree):
        raise InvalidTree(f"A policy's `grow` returned {type(grown).__name__}; it must return a TokenTree.")
    return grown


@attrs.define(eq=False)
class Level:
    """Nodes of all rows, left-aligned: number -1 stands for none.

    Attributes:
        nodes: int64 `[rows, width]`.
    """

    nodes: Nodes

    @property
    def valid(self) -> NDArray[np.bool_]:
        return self.nodes >= 0

    @property
    def counts(self) -> Nodes:
        counts: Nodes = self.valid.sum(1)
        return counts

    @property
    def empty(self) -> bool:
        return not self.nodes.size

    def of(self, values: NDArray[Any], *, none: float = 0) -> NDArray[Any]:
        """`values` `[rows, nodes]` of these nodes, `[rows, width]`; `none` where there is none."""
        return np.where(self.valid, np.take_along_axis(values, np.maximum(self.nodes, 0), 1), none)


def aligned(values: NDArray[Number], keep: NDArray[np.bool_], *, none: Any = -1) -> NDArray[Number]:
    """The `values` `[rows, m]` to keep, in their order, and `none` behind those of a row."""
    order = np.argsort(~keep, axis=1, kind="stable")[:, : keep.sum(1).max(initial=0)]
    kept = np.take_along_axis(keep, order, 1)
    return np.where(kept, np.take_along_axis(values, order, 1), values.dtype.type(none))


def widened(values: NDArray[Number], columns: int) -> NDArray[Number]:
    """`values` `[rows, m]` with zeros behind them, `[rows, columns]`; a tenth of what `np.pad` takes."""
    wide = np.zeros((len(values), columns), values.dtype)
    wide[:, : values.shape[1]] = values
    return wide


class TreesBuilder:
    """Grows the trees of all rows; a node is a number of its own row, the root is 0.

    Attributes:
        tokens, parents, depths: int64 `[rows, capacity]`.
        sizes: nodes of every row so far, int64 `[rows]`.
    """

    def __init__(self, roots: Sequence[int]) -> None:
        rows = len(roots)
        self.tokens, self.parents, self.depths = (np.zeros((rows, 64), dtype=np.int64) for _ in range(3))
        self.tokens[:, 0], self.parents[:] = roots, -1
        self.sizes = np.ones(rows, dtype=np.int64)
        self._asked = np.full((rows, 64, 2), -1)
        self._numbers = np.full((rows, 64), -1)
        self._requested = np.zeros(rows, dtype=np.int64)
        self._levels: list[Tensor] = []
        self._rows = np.arange(rows)[:, None]

    @property
    def roots(self) -> Level:
        return Level(np.zeros((len(self.sizes), 1), dtype=np.int64))

    def ask(self, level: Level) -> Generator[Requests, Tensor, Tensor]:
        """The draft distributions `[rows, width, vocab]` of a level, by `yield from`."""
        valid, counts = level.valid, level.counts
        columns = np.broadcast_to(np.arange(level.nodes.shape[1]), valid.shape)
        rows, nodes = np.broadcast_to(self._rows, valid.shape)[valid], level.nodes[valid]
        self._asked[rows, nodes, 0], self._asked[rows, nodes, 1] = len(self._levels), columns[valid]
        self._numbers[rows, nodes] = (self._requested[:, None] + columns)[valid]
        self._requested += counts
        parents = level.of(self.parents, none=-1)
        numbers = np.take_along_axis(self._numbers, np.maximum(parents, 0), 1)
        probs = yield Requests(
            torch.from_numpy(level.of(self.tokens)),
            torch.from_numpy(np.where(parents >= 0, numbers, -1)),
            counts.tolist(),
        )
        self._levels.append(probs)
        return probs

    def add(self, parents: Nodes, tokens: Nodes, keep: NDArray[np.bool_]) -> Nodes:
        """Children of these parents in order, `[rows, m]` each, where to keep; their numbers, or -1."""
        new = keep.sum(1)
        self._reserve(int((self.sizes + new).max()))
        numbers = np.where(keep, self.sizes[:, None] + keep.cumsum(1) - 1, -1)
        rows, nodes = np.broadcast_to(self._rows, keep.shape)[keep], numbers[keep]
        self.tokens[rows, nodes], self.parents[rows, nodes] = tokens[keep], parents[keep]
        self.depths[rows, nodes] = self.depths[rows, parents[keep]] + 1
        self.sizes = self.sizes + new
        return numbers

    def finish(self, law: type[Proposal]) -> TreeBatch:
        """The trees grown so far."""
        n = int(self.sizes.max())
        return TreeBatch(
            tokens=self.tokens[:, :n],
            parents=self.parents[:, :n],
            depths=self.depths[:, :n],
            counts=self.sizes,
            law=law,
            levels=tuple(self._levels),
            asked=self._asked[:, :n],
        )

    def _reserve(self, nodes: int) -> None:
        if (have := self.tokens.shape[1]) < nodes:
            more = ((0, 0), (0, max(nodes, 2 * have) - have))
            self.tokens, self.depths = np.pad(self.tokens, more), np.pad(self.depths, more)
            self.parents, self._numbers = (
                np.pad(numbers, more, constant_values=-1) for numbers in (self.parents, self._numbers)
            )
            self._asked = np.pad(self._asked, (*more, (0, 0)), constant_values=-1)
