"""Tree attention in plain PyTorch, in fp32 or better; README.md has the derivation."""

from __future__ import annotations

import torch
from torch import Tensor

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
    """Returns the outputs of `dispatch.attend`; undefined for nodes after `mask.counts`."""
    seen, precise = mask.visible(), torch.promote_types(queries.dtype, torch.float32)
    rows, heads, nodes, _ = queries.shape
    kv_heads, slots = keys.shape[1], seen.shape[2]
    # What nobody sees may be anything, NaN too.
    used = seen.any(1)[:, None, :, None]
    keys, values = (torch.where(used, tensor[:, :, :slots], 0).to(precise) for tensor in (keys, values))
    grouped = queries.reshape(rows, kv_heads, heads // kv_heads, nodes, -1).to(precise)
    scores = torch.einsum("rkgnd,rksd->rkgns", grouped, keys) * scale
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    scores = scores.masked_fill(~seen[:, None, None], -torch.inf)
    if sinks is not None:
        sink = sinks.to(precise).view(1, kv_heads, -1, 1, 1).expand(rows, -1, -1, nodes, 1)
        scores = torch.cat([scores, sink], -1)
    weights = scores.softmax(-1)[..., :slots]
    out = torch.einsum("rkgns,rksd->rkgnd", weights, values)
    return out.reshape(rows, heads, nodes, -1).transpose(1, 2).to(queries.dtype)
