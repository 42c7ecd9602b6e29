"""Chooses between the kernel and the reference of a KV commit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise

import torch
from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.kv_commit import reference
from draftwood.kernels.tensor_checks import layout_objection

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


def move(
    *, arenas: Sequence[Tensor], rows: Sequence[int], sources: Sequence[int], targets: Sequence[int]
) -> None:
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
    _check(arenas, rows, sources, targets)
    if not rows:
        return
    groups = [list(group) for _, group in groupby(range(len(rows)), key=rows.__getitem__)]
    most = max(map(len, groups))
    if not support.use_kernel("kv_commit", _objection(arenas, most)):
        reference.move(arenas=arenas, rows=rows, sources=sources, targets=targets)
        return
    configuration = next(choice for choice in CONFIGURATIONS if most <= choice.constants["MOVES"])
    plan = [number for arena in arenas for number in _about(arena)]
    plan += [number for group in groups for number in (rows[group[0]], group[0], group[-1] + 1)]
    plan += [slot for pair in zip(sources, targets, strict=True) for slot in pair]
    buffers, heads = (max(arena.shape[axis] for arena in arenas) for axis in (0, 2))
    width = max(_words(arena) for arena in arenas)
    configuration.launch(
        (len(arenas) * buffers * len(groups), heads, -(-width // WORDS)),
        plan=torch.tensor(plan).to(arenas[0].device, non_blocking=True),
        buffers=buffers,
        moved=len(groups),
        arenas=len(arenas),
    )


def _about(arena: Tensor) -> list[int]:
    """The line of `arena` in the kernel's plan, strides in words."""
    strides = [stride * arena.element_size() // 4 for stride in arena.stride()[:-1]]
    return [arena.data_ptr(), arena.shape[0], arena.shape[2], _words(arena), *strides]


def _words(arena: Tensor) -> int:
    return arena.shape[-1] * arena.element_size() // 4


def _objection(arenas: Sequence[Tensor], most: int) -> str | None:
    if (reason := support.objection(arenas[0])) is not None:
        return reason
    for arena in arenas:
        if arena.element_size() not in (2, 4, 8):
            return f"its rows are {arena.dtype}"
        if arena.shape[-1] * arena.element_size() % 32:
            return f"its rows have {arena.shape[-1]} elements of {arena.dtype}, no multiple of 32 bytes"
    if most > (limit := CONFIGURATIONS[-1].constants["MOVES"]):
        return f"a row moves {most} slots, and the kernel holds {limit}"
    return layout_objection(**{f"arena {number}": arena for number, arena in enumerate(arenas)})


def _check(
    arenas: Sequence[Tensor], rows: Sequence[int], sources: Sequence[int], targets: Sequence[int]
) -> None:
    if not len(rows) == len(sources) == len(targets):
        raise ValueError(
            f"{len(rows)} rows, {len(sources)} sources and {len(targets)} targets; give one of each a move."
        )
    have = min(arena.shape[1] for arena in arenas)
    slots = min(arena.shape[3] for arena in arenas)
    for row, source, target in zip(rows, sources, targets, strict=True):
        if not (0 <= row < have and 0 <= source < slots and 0 <= target < slots):
            raise ValueError(
                f"A move from slot {source} to {target} of row {row} lies outside {have} rows of {slots} "
                "slots."
            )
    if len(set(zip(rows, targets, strict=True))) < len(rows):
        raise ValueError(f"The moves write a slot twice: rows {list(rows)}, slots {list(targets)}.")
    if any(later < earlier for earlier, later in pairwise(rows)):
        raise ValueError(f"The rows {list(rows)} must be in ascending order.")
