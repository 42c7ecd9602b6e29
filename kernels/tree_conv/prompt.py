"""Causal convolution over a text, on any device: along a tree that is one chain no window is looked up."""

from __future__ import annotations

import torch
from torch import Tensor


def attend(*, inputs: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Outputs `[rows, tokens, channels]` of the next tokens of a text.

    Args:
        inputs: `[rows, tokens, channels]`.
        state: the inputs before them, `[rows, width - 1, channels]`; zeros before the text.
        weight: `[channels, width]`, the oldest input's first.
        bias: `[channels]` or None.
    """
    tokens = inputs.shape[1]
    single = torch.promote_types(inputs.dtype, torch.float32)
    all_inputs = torch.cat([state, inputs], 1).to(single)
    taps = weight.t().to(single).contiguous()
    out = all_inputs[:, :tokens] * taps[0]
    for tap in range(1, len(taps)):
        out.addcmul_(all_inputs[:, tap : tap + tokens], taps[tap])
    return (out if bias is None else out.add_(bias)).to(inputs.dtype)


def replay(*, inputs: Tensor, state: Tensor, counts: Tensor) -> Tensor:
    """The last inputs `[rows, width - 1, channels]` once the first `counts` `[rows]` int64 are committed."""
    all_inputs = torch.cat([state, inputs], 1)
    last = counts.unsqueeze(1) + torch.arange(state.shape[1], device=state.device)
    return all_inputs.gather(1, last.unsqueeze(2).expand(-1, -1, all_inputs.shape[2]))
