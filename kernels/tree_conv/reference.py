"""Causal convolution along a tree, in plain PyTorch; README.md has the derivation.

Columns are the uncommitted nodes of a row, ancestors before descendants; the new nodes are the last ones.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def windows(*, visible: Tensor, width: int) -> Tensor:
    """Returns the positions of every new node's window in `width - 1` committed inputs followed by the
    columns.

    Args:
        visible: bool `[rows, nodes, columns]`; a node sees itself and its ancestors.
        width: of the convolution.

    Returns:
        int64 `[rows, nodes, width]`, ascending: ancestors come before their descendants, so a window is the
        last `width` positions that the node sees.
    """
    seen = pad(visible, (width - 1, 0), value=True)
    positions = torch.arange(seen.shape[-1], device=seen.device)
    return torch.where(seen, positions, -1).topk(width, dim=-1).values.flip(-1)


def attend(*, inputs: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, window: Tensor) -> Tensor:
    """Outputs `[rows, nodes, channels]` of the new nodes.

    Args:
        inputs: `[rows, columns, channels]`.
        state: the last committed inputs, `[rows, width - 1, channels]`; zeros before the text.
        weight: `[channels, width]`, the oldest input's first.
        bias: `[channels]` or None.
        window: of `windows`.
    """
    all_inputs = torch.cat([state, inputs], 1)
    rows, columns, channels = all_inputs.shape
    # One flat index, and products in single precision: batched products of such narrow matrices are many
    # times slower on a CPU.
    first = torch.arange(0, rows * columns, columns, device=all_inputs.device).view(-1, 1, 1)
    wide = all_inputs.to(torch.promote_types(all_inputs.dtype, torch.float32)).view(-1, channels)
    seen = wide.index_select(0, (window + first).flatten()).view(*window.shape, channels)
    out = seen.mul_(weight.t().contiguous()).sum(2)
    return (out if bias is None else out + bias).to(all_inputs.dtype)


def replay(*, inputs: Tensor, state: Tensor, kept: Tensor) -> Tensor:
    """The state after committing the columns `kept`, bool `[rows, columns]`; the others are dropped."""
    all_inputs = torch.cat([state, inputs], 1)
    width = state.shape[1]
    last = windows(visible=kept.unsqueeze(1), width=width + 1)[:, 0, 1:]
    return all_inputs[torch.arange(len(all_inputs), device=all_inputs.device).unsqueeze(1), last]
