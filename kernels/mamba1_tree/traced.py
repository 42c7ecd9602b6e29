"""Mamba-1 along a tree for a traced graph: no loop and no shape depends on the tree.

Every column begins with its own term of the sum that is its state, and takes over what an ancestor has: at
first its parent, and at every step one twice as far up. After `log2(columns)` steps every root is reached.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad


def parents(visible: Tensor) -> Tensor:
    """1 + the parent of every column, int64 `[rows, columns]`; 0 for roots, and for what no new node sees.

    Args:
        visible: bool `[rows, nodes, columns]`; a node sees itself and its ancestors, which come before it.
    """
    numbers = torch.arange(1, visible.shape[-1] + 1, device=visible.device)
    # Of what a node sees, the last column before each.
    before = pad(torch.where(visible, numbers, 0).cummax(-1).values[..., :-1], (1, 0))
    return torch.where(visible, before, 0).amax(1)


def attend(
    *,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    steps: Tensor,
    rates: Tensor,
    state: Tensor,
    visible: Tensor,
) -> Tensor:
    """Computes `reference.attend`, holding the states of all columns at a time.

    Args:
        queries: C of the new nodes, `[rows, nodes, groups, n]`.
        keys: B, `[rows, columns, groups, n]`.
        values: the inputs times their step, `[rows, columns, channels]`.
        steps: the steps, `[rows, columns, channels]`.
        rates: A, `[channels, n]`, below 0; a step decays the state by `exp(step A)`.
        state: committed, `[rows, channels, n]`.
        visible: bool `[rows, nodes, columns]`; a node sees itself and its ancestors.
    """
    (rows, columns, _), (nodes, groups), dtype = values.shape, queries.shape[1:3], values.dtype
    queries, keys, values = (tensor.to(state.dtype) for tensor in (queries, keys, values))
    terms = (values.unflatten(-1, (groups, -1)).unsqueeze(-1) * keys.unsqueeze(-2)).flatten(2, 3)
    # Before the columns the committed state, and after them a zero state, the parent of the committed one.
    states = torch.cat([state.unsqueeze(1), terms, torch.zeros_like(state).unsqueeze(1)], 1)
    sums, up = pad(steps, (0, 0, 1, 1)), pad(parents(visible), (1, 1), value=columns + 1)
    row = torch.arange(rows, device=values.device).unsqueeze(1)
    for _ in range(columns.bit_length()):
        states = states + (sums.unsqueeze(-1) * rates).exp() * states[row, up]
        sums, up = sums + sums[row, up], up.gather(1, up)
    new = states[:, 1 + columns - nodes : 1 + columns].unflatten(2, (groups, -1))
    outputs: Tensor = new @ queries.unsqueeze(-1)
    return outputs.squeeze(-1).flatten(2).to(dtype)
