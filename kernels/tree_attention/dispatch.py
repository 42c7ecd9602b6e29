"""Chooses between the kernel and the reference of tree attention, and how a call is split."""

from __future__ import annotations

from functools import cache
from itertools import product

import torch
from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.configuration import TYPES, Configuration
from draftwood.kernels.tensor_checks import layout_objection, strides
from draftwood.kernels.tree_attention import reference
from draftwood.kernels.tree_attention.mask import WORD, TreeMask

DIMS = (64, 128, 256)
"""Widths that head dims are padded to."""

HALF = {
    (64, 16): (32, 4),
    (64, 64): (64, 4),
    (128, 16): (32, 8),
    (128, 64): (64, 8),
    (256, 16): (32, 8),
    (256, 32): (32, 4),
}
SINGLE = {(64, 16): (32, 4), (128, 16): (32, 4), (256, 16): (16, 8)}
TILES = {"fp16": HALF, "bf16": HALF, "fp32": SINGLE}
"""By dtype, dim and lines of a tile: slots a program takes at once, and its warps. They fit the registers."""

PART = 256
"""Slots that a part of the prefix has at least."""

KERNEL = "draftwood.kernels.tree_attention.kernel"


def _attending(dtype: str, dim: int, lines: int) -> Configuration:
    data, integer = f"*{dtype}", "i32"
    slots, warps = TILES[dtype][dim, lines]
    types = dict.fromkeys(("queries", "keys", "values"), data)
    types |= dict.fromkeys(("bits", "first", "lengths", "counts", "at", "blocks", "block_counts"), "*i32")
    types |= {"sinks": data, "sums": "*fp32", "weights": "*fp32", "peaks": "*fp32", "out": data}
    strides = [
        f"{tensor}_{axis}"
        for tensor, axes in (
            ("query", ("row", "head", "node")),
            ("key", ("row", "head", "slot")),
            ("value", ("row", "head", "slot")),
        )
        for axis in axes
    ]
    aligned = [*strides, "dim", "value_dim"]
    types |= dict.fromkeys(aligned, integer)
    counts = ("nodes", "group", "kv_heads", "columns", "words", "parts", "part_slots", "sink_heads")
    types |= dict.fromkeys(counts, integer)
    types |= dict.fromkeys(("scale", "softcap"), "fp32")
    return Configuration(
        name=f"{dtype}, dim {dim}, {lines} lines",
        kernel=f"{KERNEL}:attend",
        types=types,
        constants={
            "LINES": lines,
            "SLOTS": slots,
            "WORD": WORD,
            "DIM": dim,
            "PRECISION": "ieee",
        },
        aligned=frozenset(aligned),
        warps=warps,
        matrix=dtype != "fp32",
    )


def _merging(dtype: str, dim: int) -> Configuration:
    types = {"counts": "*i32", "sinks": f"*{dtype}", "sums": "*fp32", "weights": "*fp32", "peaks": "*fp32"}
    types |= {"out": f"*{dtype}", "value_dim": "i32"}
    types |= dict.fromkeys(("nodes", "group", "kv_heads", "parts", "sink_heads"), "i32")
    return Configuration(
        name=f"{dtype}, dim {dim}",
        kernel=f"{KERNEL}:merge",
        types=types,
        constants={"LINES": 1024 // dim, "DIM": dim},
        aligned=frozenset({"value_dim"}),
    )


ATTENDING = {
    (dtype, dim, lines): _attending(dtype, dim, lines)
    for dtype, tiles in TILES.items()
    for dim, lines in tiles
}
MERGING = {(dtype, dim): _merging(dtype, dim) for dtype, dim in product(TYPES.values(), DIMS)}
CONFIGURATIONS = (*ATTENDING.values(), *MERGING.values())


def attend(
    *,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: TreeMask,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Attention of new nodes to the committed slots and, along the tree, to the uncommitted ones.

    Args:
        queries: `[rows, heads, nodes, dim]`, of the new nodes.
        keys: `[rows, kv_heads, slots, dim]`; slots from `mask.start` on hold the mask's columns, the new
            nodes' own included. Heads of a group share their keys.
        values: `[rows, kv_heads, slots, value_dim]`.
        mask: the mask of every node.
        scale: of the scores.
        softcap: scores become `softcap tanh(scores / softcap)`.
        sinks: `[heads]`, a logit of every head that takes weight and has no value.

    Returns:
        `[rows, nodes, heads, value_dim]` in the queries' dtype; nodes after `mask.counts` are not written.

    Raises:
        ValueError: shapes that do not belong together.
    """
    check(queries, keys, values, mask, sinks)
    rows, heads, nodes, dim = queries.shape
    kv_heads, value_dim = keys.shape[1], values.shape[3]
    if not rows or not nodes:
        return queries.new_empty(rows, nodes, heads, value_dim)
    if not support.use_kernel("tree_attention", objection(queries, keys, values, sinks)):
        return reference.attend(
            queries=queries, keys=keys, values=values, mask=mask, scale=scale, softcap=softcap, sinks=sinks
        )
    group = heads // kv_heads
    kind, width, lines = choice(queries, keys, values)
    chosen = ATTENDING[kind, width, lines]
    tiles = -(-nodes * group // lines)
    blocks, block_counts = mask.blocks(group=group, lines=lines)
    parts, part_slots = split(
        mask.start, programs=tiles * rows * kv_heads, processors=_processors(queries.device),
        step=chosen.constants["SLOTS"],
    )  # fmt: skip
    out = queries.new_empty(rows, nodes, heads, value_dim)
    partials = parts * rows * heads * nodes if parts > 1 else 0
    sums = torch.empty(partials, value_dim, dtype=torch.float32, device=queries.device)
    weights, peaks = (torch.empty(partials, dtype=torch.float32, device=queries.device) for _ in range(2))
    names = ("row", "head", "node"), ("row", "head", "slot"), ("row", "head", "slot")
    stride_arguments = {
        f"{name}_{axis}": stride
        for name, tensor, axes in zip(("query", "key", "value"), (queries, keys, values), names, strict=True)
        for axis, stride in zip(axes, strides(tensor), strict=False)
    }
    shared = {
        "counts": mask.counts,
        "sinks": queries if sinks is None else sinks,
        "sink_heads": heads if sinks is not None else 0,
        "sums": sums,
        "weights": weights,
        "peaks": peaks,
        "out": out,
        "value_dim": value_dim,
        "nodes": nodes,
        "group": group,
        "kv_heads": kv_heads,
        "parts": parts,
    }
    chosen.launch(
        (tiles, rows * kv_heads, parts),
        queries=queries,
        keys=keys,
        values=values,
        bits=mask.bits,
        first=mask.first,
        lengths=mask.lengths,
        at=mask.slot,
        blocks=blocks,
        block_counts=block_counts,
        dim=dim,
        columns=mask.columns,
        words=mask.bits.shape[2],
        part_slots=part_slots,
        scale=float(scale),
        softcap=float(softcap or 0.0),
        **stride_arguments,
        **shared,
    )
    if parts > 1:
        merging = MERGING[kind, width]
        merging.launch((-(-nodes * group // merging.constants["LINES"]), rows * kv_heads), **shared)
    return out


def choice(queries: Tensor, keys: Tensor, values: Tensor) -> tuple[str, int, int]:
    """Returns the dtype, the padded head dim and the lines of a tile for tensors that the kernel takes."""
    heads, nodes, dim = queries.shape[1:]
    kind = TYPES[queries.dtype]
    width = next(width for width in DIMS if max(dim, values.shape[3]) <= width)
    return kind, width, _lines(kind, width, nodes * heads // keys.shape[1])


def _lines(kind: str, width: int, needed: int) -> int:
    """The smallest tile that holds the lines needed, or the largest there is."""
    there = sorted(lines for dim, lines in TILES[kind] if dim == width)
    return next((lines for lines in there if lines >= needed), there[-1])


def split(start: int, *, programs: int, processors: int, step: int) -> tuple[int, int]:
    """Parts of a call and slots of each: the prefix in parts, then the tree, which has the last one.

    One part does both where the programs of one fill the device, or the prefix is short.

    Args:
        start: slots of the longest prefix.
        programs: of one part.
        processors: multiprocessors, each of which is to have two programs.
        step: slots that a program takes at once.
    """
    parts = min(-(-start // PART), max(1, 2 * processors // programs))
    if parts <= 1:
        return 1, -(-start // step) * step
    slots = -(-start // parts // step) * step
    return -(-start // slots) + 1, slots


def objection(queries: Tensor, keys: Tensor, values: Tensor, sinks: Tensor | None = None) -> str | None:
    """Returns why the kernel cannot take these, as the end of a sentence; None where it can."""
    if (reason := support.objection(queries)) is not None:
        return reason
    tensors = [queries, keys, values, *([] if sinks is None else [sinks])]
    if any(tensor.dtype != queries.dtype for tensor in tensors):
        return f"its tensors are {', '.join(str(tensor.dtype) for tensor in tensors)}"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return "it has no gradient"
    for dim in (queries.shape[3], values.shape[3]):
        if (reason := unsupported(queries.dtype, dim)) is not None:
            return reason
    return layout_objection(
        queries=queries, keys=keys, values=values, **({} if sinks is None else {"sinks": sinks})
    )


def unsupported(dtype: torch.dtype, dim: int) -> str | None:
    """Returns why the kernel never takes this dtype or head dim; None where it does."""
    if dtype not in TYPES:
        return f"its tensors are {dtype}"
    if dim % 16 or not 16 <= dim <= DIMS[-1]:
        return f"a head dim of {dim} is not a multiple of 16 up to {DIMS[-1]}"
    return None


@cache
def _processors(device: torch.device) -> int:
    # In the interpreter any number will do.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 16


def check(queries: Tensor, keys: Tensor, values: Tensor, mask: TreeMask, sinks: Tensor | None) -> None:
    rows, heads, nodes, dim = queries.shape
    kv_heads, slots = keys.shape[1], min(keys.shape[2], values.shape[2])
    if keys.shape != (rows, kv_heads, keys.shape[2], dim) or values.shape[:2] != (rows, kv_heads):
        raise ValueError(
            f"Queries {tuple(queries.shape)}, keys {tuple(keys.shape)} and values {tuple(values.shape)} do "
            "not belong together."
        )
    if heads % kv_heads:
        raise ValueError(f"{heads} heads cannot share {kv_heads} heads of keys evenly.")
    if mask.bits.shape[:2] != (rows, nodes):
        raise ValueError(
            f"The mask is for {tuple(mask.bits.shape[:2])} rows and nodes, the queries are for "
            f"{(rows, nodes)}."
        )
    if mask.start + mask.columns > slots:
        raise ValueError(
            f"The mask's {mask.start} committed slots and {mask.columns} columns exceed the {slots} slots "
            "of the keys and values."
        )
    if sinks is not None and sinks.shape != (heads,):
        raise ValueError(f"Sinks {tuple(sinks.shape)} must be one per head, ({heads},).")
