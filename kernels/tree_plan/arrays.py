"""Drafted trees of several rows as kernels read them: arrays on the host, and one plan for the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

FIXED, FULL, REMAINING = range(3)
"""How a node was drawn: not at all, as a fixed token; from its full law; from the rest after its siblings."""

LINE = 8
"""Integers of a node in a plan."""

DUST = 2.0**-54
"""Chances below count as none: no uniform of 53 bits can tell, and rounding makes each of the other."""


@dataclass(frozen=True, eq=False)
class TreeCase:
    """One row's tree with its target's distributions and the uniforms that judge it.

    Attributes:
        tokens: of every node, the root first.
        parents: -1 for the root, each before its children; siblings stand in drawn order.
        draw_kinds: `FIXED`, `FULL` or `REMAINING` for every node; any for the root.
        laws: the draft probabilities `[vocab]` that every node was drawn from, fp32; siblings of which one
            is `REMAINING` have one law, fixed ones among them too. Else None for a fixed node.
        targets: the target's distribution after every node, fp32 `[nodes, vocab]`.
        uniforms: float64 in [0, 1), on the CPU; as many as nodes and one are enough.
    """

    tokens: Sequence[int]
    parents: Sequence[int]
    draw_kinds: Sequence[int]
    laws: Sequence[Tensor | None]
    targets: Tensor
    uniforms: Tensor

    @property
    def children(self) -> list[list[int]]:
        """The children of every node, in drawn order."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                children[parent].append(node)
        return children


@dataclass(frozen=True)
class Walk:
    """The result of a rule on a tree.

    Attributes:
        path: accepted nodes, the root first.
        extra: the token after them.
        bonus: whether it was drawn from the target at a leaf.
        used: how many uniforms decided it.
    """

    path: tuple[int, ...]
    extra: int
    bonus: bool
    used: int


@dataclass(frozen=True, eq=False)
class TreeArrays:
    """Trees of several rows, padded to the widest, with the addresses of their distributions.

    The caller keeps the tensors at the addresses until the result is read.

    Attributes:
        tokens: `[rows, nodes]`.
        parents: `[rows, nodes]`; -1 for roots and padding.
        counts: nodes of every row, `[rows]`.
        draw_kinds: `FIXED`, `FULL` or `REMAINING`, `[rows, nodes]`.
        laws: addresses of the fp32 distribution that every node was drawn from, `[rows, nodes]`; 0 for none.
        targets: addresses of the target's fp32 distribution after every node, `[rows, nodes]`.
        uniforms: `[rows, numbers]`, NaN after the last of a row.
        vocab: length of every distribution.
        device: of the distributions.
    """

    tokens: Ints
    parents: Ints
    counts: Ints
    draw_kinds: Ints
    laws: Ints
    targets: Ints
    uniforms: Floats
    vocab: int
    device: torch.device

    @classmethod
    def of(cls, cases: Sequence[TreeCase]) -> TreeArrays:
        """Returns the arrays of `cases`, one per row, at least one.

        Raises:
            ValueError: distributions of another dtype, device or length than the first case's targets, or
                that are not contiguous; or lists of several lengths.
        """
        like = cases[0].targets
        for case in cases:
            _check(case, like)
        counts = np.array([len(case.tokens) for case in cases])
        return cls(
            tokens=padded([case.tokens for case in cases], 0),
            parents=padded([case.parents for case in cases], -1),
            counts=counts,
            draw_kinds=padded([case.draw_kinds for case in cases], FIXED),
            laws=padded([[0 if law is None else law.data_ptr() for law in case.laws] for case in cases], 0),
            targets=row_addresses([case.targets for case in cases], int(counts.max())),
            uniforms=padded_uniforms([case.uniforms for case in cases]),
            vocab=like.shape[-1],
            device=like.device,
        )

    @property
    def lines(self) -> int:
        """Lines of a row in the plan: as many as nodes, and as uniforms with NaN after the last."""
        return max(int(self.tokens.shape[1]), int(self.uniforms.shape[1])) + 1

    def plan(self, spare: int = 0) -> Tensor:
        """Returns int64 `[rows, lines + spare, LINE]` on the host: a line per node, and `spare` lines of
        zeros.

        A node's line has its token, first child and next sibling (0 for none), how it was drawn, the
        addresses of its law and of the target after it, a uniform's bits, and its parent. Line i has the
        uniform that is used after i others; lines after the nodes only have uniforms.
        """
        rows, nodes = self.tokens.shape
        plan = np.zeros((rows, self.lines + spare, LINE), dtype=np.int64)
        first, further = links(self.parents)
        columns = (self.tokens, first, further, self.draw_kinds, self.laws, self.targets)
        for column, values in enumerate(columns):
            plan[:, :nodes, column] = values
        uniforms = np.full((rows, self.lines), np.nan)
        uniforms[:, : self.uniforms.shape[1]] = self.uniforms
        plan[:, : self.lines, 6] = uniforms.view(np.int64)
        plan[:, :nodes, 7] = self.parents
        return torch.from_numpy(plan)


def walks_of(results: Tensor) -> list[Walk | None]:
    """The walks in int32 `[rows, 5 + lines]`, which are read back: the only wait for a kernel.

    A row holds whether something was wrong, how many uniforms were used, whether the extra token is a bonus,
    that token, the length of the path, and the path. Where something was wrong there is no walk.
    """
    return [
        None if wrong else Walk(tuple(path[:length]), extra, bool(bonus), used)
        for wrong, used, bonus, extra, length, *path in results.tolist()
    ]


def links(parents: Ints) -> tuple[Ints, Ints]:
    """The first child and the next sibling of every node, `[rows, nodes]`; 0 for none.

    `parents` `[rows, nodes]`, negative for roots and padding, which have no siblings.
    """
    nodes = parents.shape[1]
    first, further = np.zeros_like(parents), np.zeros_like(parents)
    row, node = np.nonzero(parents >= 0)
    above = parents[row, node]
    # Nodes of one parent are then adjacent, and keep their order.
    order = np.argsort(row * nodes + above, kind="stable")
    row, node, above = row[order], node[order], above[order]
    siblings = (row[1:] == row[:-1]) & (above[1:] == above[:-1])
    starts = np.concatenate([np.ones(min(len(row), 1), dtype=bool), ~siblings])
    first[row[starts], above[starts]] = node[starts]
    further[row[:-1][siblings], node[:-1][siblings]] = node[1:][siblings]
    return first, further


def row_addresses(targets: Tensor | Sequence[Tensor], nodes: int) -> Ints:
    """Addresses `[rows, nodes]` of the distributions in `targets`: `[rows, nodes, vocab]`, or one a row."""
    if isinstance(targets, Tensor):
        size, (by_row, by_node) = targets.element_size(), targets.stride()[:2]
        starts = targets.data_ptr() + size * by_row * np.arange(len(targets))
        return starts[:, None] + size * by_node * np.arange(nodes)
    starts = np.array([row.data_ptr() for row in targets], dtype=np.int64)
    steps = np.array([row.stride(0) * row.element_size() for row in targets], dtype=np.int64)
    return starts[:, None] + steps[:, None] * np.arange(nodes)


def padded(rows: Sequence[Sequence[int]], filler: int) -> Ints:
    """`rows` as one array `[rows, longest]`."""
    result: Ints = np.full((len(rows), max(map(len, rows))), filler, dtype=np.int64)
    for row, values in zip(result, rows, strict=True):
        row[: len(values)] = values
    return result


def padded_uniforms(tapes: Sequence[Tensor]) -> Floats:
    """Returns `tapes`, float64 on the CPU, as one array `[rows, longest]`, padded with NaN."""
    result = np.full((len(tapes), max(map(len, tapes))), np.nan)
    for row, tape in zip(result, tapes, strict=True):
        row[: len(tape)] = tape.numpy()
    return result


def _check(case: TreeCase, like: Tensor) -> None:
    nodes = len(case.tokens)
    if not nodes == len(case.parents) == len(case.draw_kinds) == len(case.laws) <= len(case.targets):
        raise ValueError(
            f"{nodes} tokens, {len(case.parents)} parents, {len(case.draw_kinds)} kinds of draws, "
            f"{len(case.laws)} laws and {len(case.targets)} targets; give one of each per node."
        )
    for probs in (case.targets, *case.laws):
        if probs is None:
            continue
        if (probs.dtype, probs.device, probs.shape[-1]) != (torch.float32, like.device, like.shape[-1]):
            raise ValueError(
                f"A distribution of {probs.shape[-1]} tokens is {probs.dtype} on {probs.device}; this launch "
                f"needs {like.shape[-1]} of torch.float32 on {like.device}."
            )
        if probs.shape[-1] > 1 and probs.stride(-1) != 1:
            raise ValueError(f"A distribution has stride {probs.stride(-1)}; make it contiguous.")
