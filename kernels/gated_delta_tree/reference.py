"""The gated delta rule along a tree, in plain PyTorch; README.md has the derivation.

Columns are the uncommitted nodes of a row, ancestors before descendants; the new nodes are the last ones.
Heads of a group share queries and keys.
"""

from __future__ import annotations

import torch
from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.mamba2_tree.reference import path_decay, read, replay, scores

__all__ = ["attend", "replay", "solved"]


def attend(
    *,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    deltas: Tensor,
    rates: Tensor,
    decay: Tensor,
    state: Tensor,
    visible: Tensor,
) -> tuple[Tensor, Tensor]:
    """Outputs and deltas of the new nodes, both `[rows, nodes, heads, p]`.

    Deltas are what the state takes in: `replay` of `draftwood.kernels.mamba2_tree` commits them as its
    values.

    Args:
        queries: of the new nodes, `[rows, nodes, groups, n]`, scaled.
        keys: `[rows, columns, groups, n]`.
        values: of the new nodes, `[rows, nodes, heads, p]`.
        deltas: of the older columns, `[rows, columns - nodes, heads, p]`.
        rates: beta of the new nodes, `[rows, nodes, heads]`.
        decay: the log decay of every step, `[rows, columns, heads]`, at most 0.
        state: committed, `[rows, heads, p, n]`.
        visible: bool `[rows, nodes, columns]`; a node sees itself and its ancestors.
    """
    (nodes, heads), dtype = values.shape[1:3], values.dtype
    old = deltas.shape[1]
    queries, keys, values, deltas, rates, decay = (
        tensor.to(state.dtype) for tensor in (queries, keys, values, deltas, rates, decay)
    )
    weights, left = path_decay(decay=decay, visible=visible)
    new_keys = keys[:, old:]
    beta = rates.transpose(1, 2).unsqueeze(-1)
    overlap = weights * scores(queries=new_keys, keys=keys, heads=heads) * beta
    right_side = beta * (values.transpose(1, 2) - read(queries=new_keys, state=state, left=left))
    if old:
        right_side = right_side - overlap[..., :old] @ deltas.transpose(1, 2)
    # Ancestors come before their descendants, so the system is lower triangular, with a unit diagonal.
    new_deltas = solved(overlap[..., old:], right_side)
    deltas = torch.cat([deltas, new_deltas.transpose(1, 2)], 1)
    weights = weights * scores(queries=queries, keys=keys, heads=heads)
    out = weights @ deltas.transpose(1, 2) + read(queries=queries, state=state, left=left)
    return out.transpose(1, 2).to(dtype), deltas[:, deltas.shape[1] - nodes :].to(dtype)


def solved(below: Tensor, right_side: Tensor) -> Tensor:
    """Returns x of `(1 + below) x = right_side`, of `below` only what is below the diagonal.

    Args:
        below: `[..., n, n]`.
        right_side: `[..., n, p]`.
    """
    if support.traced():
        # For engines, which have an inverse and no such solver. It has no large numbers: of a triangular
        # matrix it is computed as the solution is.
        inverse: Tensor = torch.linalg.inv(torch.eye(below.shape[-1]) + below.tril(-1))
        return inverse @ right_side
    solution: Tensor = torch.linalg.solve_triangular(below, right_side, upper=False, unitriangular=True)
    return solution
