"""Chooses between the kernels and the reference of the gated delta rule along a tree."""

from __future__ import annotations

import torch
from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.configuration import TYPES, Configuration
from draftwood.kernels.gated_delta_tree import reference
from draftwood.kernels.mamba2_tree import dispatch as mamba2_tree
from draftwood.kernels.mamba2_tree.dispatch import PRECISION, STATE, STRIDES, replay, replay_all
from draftwood.kernels.tensor_checks import scalar_layout_objection, strides_of

__all__ = ["attend", "replay", "replay_all"]

CONFIGURATIONS = tuple(
    Configuration(
        name=kind,
        kernel="draftwood.kernels.gated_delta_tree.kernel:solve",
        types={
            **dict.fromkeys(("keys", "values", "out"), f"*{kind}"),
            **{"rates": "*fp32", "decay": "*fp32", "state": "*fp32", "visible": "*i1"},
            **dict.fromkeys((*STRIDES, *STATE), "i32"),
            **dict.fromkeys(("rate_row", "rate_node", "decay_row", "decay_column"), "i32"),
            **dict.fromkeys(("mask_row", "mask_node", "nodes", "columns", "heads", "groups"), "i32"),
        },
        constants={
            **{"NODES": 16, "COLUMNS": 32, "DIM": 32, "PRECISION": PRECISION[kind]},
            "SIZE": 16 if kind == "fp32" else 32,
        },
        aligned=frozenset((*STRIDES, *STATE)),
        matrix=True,
    )
    for kind in TYPES.values()
)


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
    """Outputs and deltas of the new nodes, both `[rows, nodes, heads, p]` in the dtype of `values`.

    Args:
        queries: of the new nodes, `[rows, nodes, groups, n]`, scaled.
        keys: `[rows, columns, groups, n]`.
        values: of the new nodes, `[rows, nodes, heads, p]`.
        deltas: of the older columns, `[rows, columns - nodes, heads, p]`.
        rates: beta of the new nodes, `[rows, nodes, heads]`.
        decay: the log decay of every step, `[rows, columns, heads]`, at most 0.
        state: committed, `[rows, heads, p, n]`.
        visible: bool `[rows, nodes, columns]`; a node sees itself and its ancestors, which come before it.

    Raises:
        ValueError: shapes that do not fit.
    """
    rows, nodes, heads, dim = values.shape
    old = deltas.shape[1]
    if deltas.shape != (rows, old, heads, dim) or rates.shape != (rows, nodes, heads):
        raise ValueError(
            f"Values of {tuple(values.shape)} need deltas and rates of the same rows, heads and p, and the "
            f"shapes are {tuple(deltas.shape)} and {tuple(rates.shape)}."
        )
    all_deltas = values.new_empty(rows, old + nodes, heads, dim)
    mamba2_tree.check(keys=keys, values=all_deltas, decay=decay, state=state, seen=visible, queries=queries)
    if not values.numel():
        return torch.empty_like(values), values
    if not support.use_kernel(
        "gated_delta_tree", _objection(queries, keys, values, rates, decay, state, visible)
    ):
        return reference.attend(
            queries=queries,
            keys=keys,
            values=values,
            deltas=deltas,
            rates=rates,
            decay=decay,
            state=state,
            visible=visible,
        )
    if old:
        all_deltas[:, :old] = deltas
    configuration = next(
        choice for choice in CONFIGURATIONS if choice.types["values"] == f"*{TYPES[values.dtype]}"
    )
    configuration.launch(
        (rows * heads, -(-dim // configuration.constants["DIM"])),
        keys=keys,
        values=values,
        out=all_deltas,
        rates=rates,
        decay=decay,
        state=state,
        visible=visible,
        **mamba2_tree.strides_and_sizes(keys, values, decay, state),
        **strides_of("rate_row rate_node", rates),
        **strides_of("mask_row mask_node", visible),
        nodes=nodes,
        columns=old + nodes,
        heads=heads,
        groups=keys.shape[2],
    )
    outputs = mamba2_tree.attend(
        queries=queries, keys=keys, values=all_deltas, decay=decay, state=state, visible=visible
    )
    return outputs, all_deltas[:, old:]


def _objection(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    rates: Tensor,
    decay: Tensor,
    state: Tensor,
    visible: Tensor,
) -> str | None:
    reason = mamba2_tree.objection(
        keys=keys, values=values, decay=decay, state=state, seen=visible, queries=queries
    )
    if reason is None and rates.dtype != torch.float32:
        return f"the rates are {rates.dtype}, not torch.float32"
    return reason or scalar_layout_objection(rates=rates)
