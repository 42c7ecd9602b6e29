"""Chooses between the kernel and the reference of a KV commit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.kv_commit import reference
from draftwood.kernels.tensor_checks import layout_objection
from draftwood.kernels.transfer import sent

Numbers = NDArray[np.int64]

WORDS = 32
"""Of 4 bytes, that a program moves of every slot."""

CONFIGURATIONS = tuple(
    Configuration(
        name=f"up to {moves} moves",
        kernel="draftwood.kernels.kv_commit.kernel:move",
        types={"plan": "*i64", "buffers": "i32", "moved": "i32", "arenas": "i32"},
        constants={"MOVES": moves, "WIDTH": WORDS},
        warps=warps,
    )
    for moves, warps in ((16, 4), (64, 4), (256, 8))
)


def move(*, arenas: Sequence[Tensor], rows: ArrayLike, sources: ArrayLike, targets: ArrayLike) -> None:
    """Copy slot `sources[i]` of row `rows[i]` to slot `targets[i]`, reading all before writing any.

    Args:
        arenas: `[buffers, rows, kv_heads, slots, dim]` each, on one device; changed in place.
        rows: of every move, in ascending order.
        sources: slots to read.
        targets: slots to write, no slot of a row twice.

    Raises:
        ValueError: lists of several lengths, a row or slot that is not there, or a slot written twice.
    """
    if not arenas:
        return
    row, source, target = (np.asarray(numbers, np.int64) for numbers in (rows, sources, targets))
    _check(arenas, row, source, target)
    if not len(row):
        return
    if not support.use_kernel("kv_commit", _objection(arenas, row)):
        reference.move(arenas=arenas, rows=row, sources=source, targets=target)
        return
    first = np.flatnonzero(np.diff(row, prepend=-1))  # of every row that moves
    last = np.append(first[1:], len(row))
    most = _most(row)
    configuration = next(choice for choice in CONFIGURATIONS if most <= choice.constants["MOVES"])
    plan = np.concatenate(
        [
            np.array([_about(arena) for arena in arenas], np.int64).ravel(),
            np.stack([row[first], first, last], 1).ravel(),
            np.stack([source, target], 1).ravel(),
        ]
    )
    buffers, heads = (max(arena.shape[axis] for arena in arenas) for axis in (0, 2))
    width = max(_words(arena) for arena in arenas)
    configuration.launch(
        (len(arenas) * buffers * len(first), heads, -(-width // WORDS)),
        plan=sent(plan, arenas[0].device),
        buffers=buffers,
        moved=len(first),
        arenas=len(arenas),
    )


def _about(arena: Tensor) -> list[int]:
    """The line of `arena` in the kernel's plan, strides in words."""
    strides = [stride * arena.element_size() // 4 for stride in arena.stride()[:-1]]
    return [arena.data_ptr(), arena.shape[0], arena.shape[2], _words(arena), *strides]


def _words(arena: Tensor) -> int:
    return arena.shape[-1] * arena.element_size() // 4


def _most(rows: Numbers) -> int:
    """Moves of the row that has the most."""
    return int(np.bincount(rows).max())


def _objection(arenas: Sequence[Tensor], rows: Numbers) -> str | None:
    if (reason := support.objection(arenas[0])) is not None:
        return reason
    for arena in arenas:
        if arena.element_size() not in (2, 4, 8):
            return f"its rows are {arena.dtype}"
        if arena.shape[-1] * arena.element_size() % 32:
            return f"its rows have {arena.shape[-1]} elements of {arena.dtype}, no multiple of 32 bytes"
    if (most := _most(rows)) > (limit := CONFIGURATIONS[-1].constants["MOVES"]):
        return f"a row moves {most} slots, and the kernel holds {limit}"
    return layout_objection(**{f"arena {number}": arena for number, arena in enumerate(arenas)})


def _check(arenas: Sequence[Tensor], rows: Numbers, sources: Numbers, targets: Numbers) -> None:
    if not len(rows) == len(sources) == len(targets):
        raise ValueError(
            f"{len(rows)} rows, {len(sources)} sources and {len(targets)} targets; give one of each per move."
        )
    have = min(arena.shape[1] for arena in arenas)
    slots = min(arena.shape[3] for arena in arenas)
    # Negative numbers are large.
    outside = np.array([rows, sources, targets]).view(np.uint64) >= np.array(
        [[have], [slots], [slots]], np.uint64
    )
    written = rows * slots + targets
    if not outside.any() and (written[1:] > written[:-1]).all():
        return
    if outside.any():
        move = outside.any(0).argmax()
        raise ValueError(
            f"A move from slot {sources[move]} to {targets[move]} of row {rows[move]} lies outside {have} "
            f"rows of {slots} slots."
        )
    written = np.sort(written)  # a quarter of what `np.unique` takes
    if (written[1:] == written[:-1]).any():
        raise ValueError(f"The moves write a slot twice: rows {rows.tolist()}, slots {targets.tolist()}.")
    if (rows[1:] < rows[:-1]).any():
        raise ValueError(f"The rows {rows.tolist()} must be in ascending order.")
