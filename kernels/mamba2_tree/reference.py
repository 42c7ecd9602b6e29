"""Mamba-2 along a tree, in plain PyTorch; README.md has the derivation.

Columns are the uncommitted nodes of a row, ancestors before descendants; the new nodes are the last ones.
Heads of a group share queries and keys.
"""

from __future__ import annotations

import torch
from torch import Tensor


def path_decay(*, decay: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Returns how much of a column's value, and of the state, is left when a node reads it.

    Args:
        decay: log decay `[rows, columns, heads]`, at most 0.
        visible: bool `[rows, nodes, columns]`.

    Returns:
        `[rows, heads, nodes, columns]`, 0 where a node does not see a column, and `[rows, heads, nodes]`.
    """
    seen = visible.unsqueeze(1)
    steps = torch.where(seen, decay.transpose(1, 2).unsqueeze(2), 0.0)
    # Sums from a column down to the node. They only hold seen columns, so that nothing overflows.
    sums = steps.flip(-1).cumsum(-1).flip(-1)
    below = torch.cat([sums[..., 1:], torch.zeros_like(sums[..., :1])], -1)
    return torch.where(seen, below.exp(), 0.0), sums[..., 0].exp()


def scores(*, queries: Tensor, keys: Tensor, heads: int) -> Tensor:
    """`[rows, heads, nodes, columns]`: the products of queries `[rows, nodes, groups, n]` and keys."""
    products = queries.transpose(1, 2) @ keys.permute(0, 2, 3, 1)
    return products.repeat_interleave(heads // products.shape[1], dim=1)


def read(*, queries: Tensor, state: Tensor, left: Tensor) -> Tensor:
    """Reads the committed state by queries `[rows, nodes, groups, n]`; returns `[rows, heads, nodes, p]`."""
    rows, nodes, groups, size = queries.shape
    heads, dim = state.shape[1:3]
    grouped = state.reshape(rows, groups, heads // groups * dim, size)
    products = (queries.transpose(1, 2) @ grouped.transpose(-1, -2)).view(rows, groups, nodes, -1, dim)
    return products.transpose(2, 3).reshape(rows, heads, nodes, dim) * left.unsqueeze(-1)


def attend(
    *, queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, state: Tensor, visible: Tensor
) -> Tensor:
    """Outputs `[rows, nodes, heads, p]` of the new nodes.

    Args:
        queries: C of the new nodes, `[rows, nodes, groups, n]`.
        keys: B, `[rows, columns, groups, n]`.
        values: the inputs times their step, `[rows, columns, heads, p]`.
        decay: the log decay of every step, `[rows, columns, heads]`, at most 0.
        state: committed, `[rows, heads, p, n]`.
        visible: bool `[rows, nodes, columns]`; a node sees itself and its ancestors.
    """
    dtype = values.dtype
    queries, keys, values, decay = (tensor.to(state.dtype) for tensor in (queries, keys, values, decay))
    weights, left = path_decay(decay=decay, visible=visible)
    weights = weights * scores(queries=queries, keys=keys, heads=values.shape[2])
    out = weights @ values.transpose(1, 2) + read(queries=queries, state=state, left=left)
    return out.transpose(1, 2).to(dtype)


def replay(*, keys: Tensor, values: Tensor, decay: Tensor, state: Tensor, kept: Tensor) -> Tensor:
    """The state after committing the columns `kept`, bool `[rows, columns]`; the others are dropped."""
    keys, values, decay = (tensor.to(state.dtype) for tensor in (keys, values, decay))
    weights, left = path_decay(decay=decay, visible=kept.unsqueeze(1))
    weighted = (values * weights.permute(0, 3, 1, 2)).unflatten(2, (keys.shape[2], -1)).flatten(3)
    added = weighted.permute(0, 2, 3, 1) @ keys.transpose(1, 2)
    return torch.addcmul(added.view_as(state), state, left.unsqueeze(-1))
