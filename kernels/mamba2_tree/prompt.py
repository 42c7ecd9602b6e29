"""Mamba-2 over a text, on any device: as along a tree that is one chain, but in pieces worked out together.

Dao and Gu, "Transformers are SSMs" (2024), section 6: within a piece attention with decay, between pieces a
scan over their states. README.md has the rest.
"""

from __future__ import annotations

import torch
from torch import Tensor

PIECE = 64
"""Tokens of a piece. Weights take `PIECE` numbers a token and head, and states are made one a piece."""


def read(
    *, queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the outputs `[rows, tokens, heads, p]` of a text's next tokens, and the state after the last.

    A token without value and decay leaves the state as it is.

    Args:
        queries: C, `[rows, tokens, groups, n]`.
        keys: B, likewise.
        values: the inputs times their step, `[rows, tokens, heads, p]`.
        decay: the log decay of every step, `[rows, tokens, heads]`, at most 0.
        state: before the first token, `[rows, heads, p, n]`.
    """
    tokens = values.shape[1]
    whole = tokens - tokens % PIECE
    outputs = []
    for start, stop in ((0, whole), (whole, tokens)):
        if start < stop:
            out, state = _pieces(
                *(tensor[:, start:stop].to(state.dtype) for tensor in (queries, keys, values, decay)),
                state=state,
                size=min(PIECE, stop - start),
            )
            outputs.append(out)
    return (torch.cat(outputs, 1) if len(outputs) > 1 else outputs[0]).to(values.dtype), state


def _pieces(
    queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, *, state: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """`read` of pieces of `size` tokens."""
    (rows, tokens, groups, n), (heads, dim) = keys.shape, values.shape[2:]
    queries, keys, values, decay = (
        tensor.reshape(rows, -1, size, *tensor.shape[2:]) for tensor in (queries, keys, values, decay)
    )
    queries, keys = queries.transpose(2, 3), keys.transpose(2, 3)
    count = values.shape[1]
    # In double precision, since sums that forget nearly all are subtracted.
    sums = decay.transpose(2, 3).double().cumsum(-1)
    left = sums.to(state.dtype).exp()

    weights = (sums.unsqueeze(-1) - sums.unsqueeze(-2)).to(state.dtype).clamp_(max=0.0).exp_()
    scores = (queries @ keys.transpose(-1, -2)).tril_()
    weights.view(rows, count, groups, -1, size, size).mul_(scores.unsqueeze(3))
    out = (weights @ values.transpose(2, 3)).transpose(2, 3)

    to_end = (sums[..., -1:] - sums).to(state.dtype).exp_().transpose(2, 3)
    weighted = (values * to_end.unsqueeze(-1)).view(rows, count, size, groups, -1)
    added = (weighted.permute(0, 1, 3, 4, 2) @ keys).view(rows, count, heads, dim, n)
    before = torch.empty_like(added)
    for piece in range(count):
        before[:, piece] = state
        state = torch.addcmul(added[:, piece], state, left[:, piece, :, -1:].unsqueeze(-1))
    found = queries @ before.view(rows, count, groups, -1, n).transpose(-1, -2)
    # With a group for each head nothing is reshaped, and the transposed view cannot be viewed as a text.
    found = found.transpose(2, 3).reshape(out.shape).contiguous()
    found = torch.addcmul(out, found, left.transpose(2, 3).unsqueeze(-1), out=found)
    return found.view(rows, tokens, heads, dim), state
