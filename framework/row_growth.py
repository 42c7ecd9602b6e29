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
    if len(values) == 1:
        return values[:, np.flatnonzero(keep)]
    order = np.argsort(~keep, axis=1, kind="stable")[:, : keep.sum(1).max(initial=0)]
    kept = np.take_along_axis(keep, order, 1)
    return np.where(kept, np.take_along_axis(values, order, 1), values.dtype.type(none))


def widened(values: NDArray[Number], columns: int, none: int = 0) -> NDArray[Number]:
    """`values` `[rows, m, ...]` with `none` behind them, `[rows, columns, ...]`; quicker than `np.pad`."""
    wide = np.full((len(values), columns, *values.shape[2:]), none, values.dtype)
    wide[:, : values.shape[1]] = values
    return wide


class TreesBuilder:
    """Grows the trees of all rows; a node is a number of its own row, the root is 0.

    Attributes:
        tokens, parents, depths: int64 `[rows, capacity]`.
        sizes: nodes of every row so far, int64 `[rows]`.
    """

    def __init__(self, roots: Sequence[int], capacity: int = 64) -> None:
        """Roots alone, with room for so many nodes before arrays are copied."""
        rows = len(roots)
        self.tokens, self.parents, self.depths = np.zeros((3, rows, capacity), dtype=np.int64)
        self.tokens[:, 0], self.parents[:] = roots, -1
        self.sizes = np.ones(rows, dtype=np.int64)
        self._asked = np.full((rows, capacity, 2), -1)
        self._numbers = np.full((rows, capacity), -1)
        self._requested = np.zeros(rows, dtype=np.int64)
        self._levels: list[Tensor] = []

    @property
    def roots(self) -> Level:
        return Level(np.zeros((len(self.sizes), 1), dtype=np.int64))

    def ask(self, level: Level) -> Generator[Requests, Tensor, Tensor]:
        """The draft distributions `[rows, width, vocab]` of a level, by `yield from`."""
        counts = level.counts
        rows, columns = np.nonzero(level.valid)
        nodes = level.nodes[rows, columns]
        self._asked[rows, nodes, 0], self._asked[rows, nodes, 1] = len(self._levels), columns
        self._numbers[rows, nodes] = self._requested[rows] + columns
        self._requested += counts
        tokens, numbers = np.zeros_like(level.nodes), np.full_like(level.nodes, -1)
        tokens[rows, columns] = self.tokens[rows, nodes]
        above = self.parents[rows, nodes]
        numbers[rows, columns] = np.where(above >= 0, self._numbers[rows, above], -1)
        probs = yield Requests(torch.from_numpy(tokens), torch.from_numpy(numbers), counts.tolist())
        self._levels.append(probs)
        return probs

    def add(self, parents: Nodes, tokens: Nodes, keep: NDArray[np.bool_]) -> Nodes:
        """Children of these parents in order, `[rows, m]` each, where to keep; their numbers, or -1."""
        before = self.sizes
        self.sizes = before + keep.sum(1)
        self._reserve(int(self.sizes.max()))
        numbers = np.where(keep, (before - 1)[:, None] + keep.cumsum(1), -1)
        rows, columns = np.nonzero(keep)
        nodes, parents = numbers[rows, columns], parents[rows, columns]
        self.tokens[rows, nodes], self.parents[rows, nodes] = tokens[rows, columns], parents
        self.depths[rows, nodes] = self.depths[rows, parents] + 1
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
            capacity = max(nodes, 2 * have)
            self.tokens, self.depths = widened(self.tokens, capacity), widened(self.depths, capacity)
            self.parents, self._numbers, self._asked = (
                widened(numbers, capacity, -1) for numbers in (self.parents, self._numbers, self._asked)
            )
