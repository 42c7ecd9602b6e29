"""Tree attention as one operation of a graph that is traced: Dynamo follows no launch of a kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwood.kernels.tree_attention import dispatch, reference
from draftwood.kernels.tree_attention.mask import TreeMask


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
    """`dispatch.attend` for a graph; which blocks of the mask hold anything is found once for all layers."""
    dispatch.check(queries, keys, values, mask, sinks)
    if any(dispatch.unsupported(queries.dtype, tensor.shape[3]) for tensor in (queries, values)):
        return reference.attend(
            queries=queries, keys=keys, values=values, mask=mask, scale=scale, softcap=softcap, sinks=sinks
        )
    lines = dispatch.choice(queries, keys, values)[2]
    blocks = mask.blocks(group=queries.shape[1] // keys.shape[1], lines=lines)
    out: Tensor = _attend(
        queries,
        keys,
        values,
        [mask.bits, mask.lengths, mask.first, mask.counts, mask.slot, *blocks],
        [mask.start, mask.columns, lines],
        float(scale),
        softcap,
        sinks,
    )
    return out


@torch.library.custom_op("draftwood::tree_attention", mutates_args=())
def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: list[Tensor],
    sizes: list[int],
    scale: float,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    bits, lengths, first, counts, at, blocks, block_counts = mask
    start, columns, lines = sizes
    packed = TreeMask(bits, lengths, start, columns, first, counts, at)
    packed.know_blocks(blocks, block_counts, group=queries.shape[1] // keys.shape[1], lines=lines)
    return dispatch.attend(
        queries=queries, keys=keys, values=values, mask=packed, scale=scale, softcap=softcap, sinks=sinks
    )


@_attend.register_fake
def _(queries: Tensor, keys: Tensor, values: Tensor, *_: object) -> Tensor:
    rows, heads, nodes, _dim = queries.shape
    return queries.new_empty(rows, nodes, heads, values.shape[3])
