"""Chooses between the kernels and the reference of Mamba-2 along a tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.configuration import TYPES, Configuration
from draftwood.kernels.layer_batch import Layer, replay_layers
from draftwood.kernels.mamba2_tree import reference
from draftwood.kernels.tensor_checks import (
    check_shapes,
    layout_objection,
    scalar_layout_objection,
    strides_of,
)

PRECISION = {"fp32": "tf32x3", "fp16": "tf32", "bf16": "tf32"}
"""Precision of matrix products: three in TF32 have the digits of fp32, one has enough for half precision."""

STRIDES = ("key_row", "key_column", "key_group", "value_row", "value_column", "value_head")
STATE = ("state_row", "state_head", "state_dim", "dim", "size")

ATTEND = tuple(
    Configuration(
        name=f"{kind}, tiles of {nodes} nodes",
        kernel="draftwood.kernels.mamba2_tree.kernel:attend",
        types={
            **dict.fromkeys(("queries", "keys", "values"), f"*{kind}"),
            **{"decay": "*fp32", "state": "*fp32", "visible": "*i1", "out": f"*{kind}"},
            **dict.fromkeys(("query_row", "query_node", "query_group", *STRIDES, *STATE), "i32"),
            **dict.fromkeys(("decay_row", "decay_column", "mask_row", "mask_node"), "i32"),
            **dict.fromkeys(("nodes", "columns", "heads", "groups"), "i32"),
        },
        constants={
            **{"NODES": nodes, "COLUMNS": 32, "DIM": 32, "PRECISION": PRECISION[kind]},
            "SIZE": 16 if kind == "fp32" else 32,
        },
        aligned=frozenset(("query_row", "query_node", "query_group", *STRIDES, *STATE)),
        matrix=True,
    )
    for kind in TYPES.values()
    for nodes in (16, 64)
)

REPLAY = tuple(
    Configuration(
        name=kind,
        kernel="draftwood.kernels.mamba2_tree.kernel:replay",
        types={
            **{"plan": "*i64", "kept": "*i1"},
            **dict.fromkeys((*STRIDES, *STATE, "decay_row", "decay_column", "kept_row"), "i32"),
            **dict.fromkeys(("columns", "rows", "heads", "groups"), "i32"),
        },
        constants={"TYPE": kind, "COLUMNS": 32, "DIM": 32, "SIZE": 64, "PRECISION": PRECISION[kind]},
        aligned=frozenset((*STRIDES, *STATE)),
        matrix=True,
    )
    for kind in TYPES.values()
)

CONFIGURATIONS = ATTEND + REPLAY


def attend(
    *, queries: Tensor, keys: Tensor, values: Tensor, decay: Tensor, state: Tensor, visible: Tensor
) -> Tensor:
    """Outputs `[rows, nodes, heads, p]` of the new nodes, in the dtype of `values`.

    Args:
        queries: C of the new nodes, `[rows, nodes, groups, n]`.
        keys: B, `[rows, columns, groups, n]`.
        values: the inputs times their step, `[rows, columns, heads, p]`.
        decay: the log decay of every step, `[rows, columns, heads]`, at most 0.
        state: committed, `[rows, heads, p, n]`.
        visible: bool `[rows, nodes, columns]`; a node sees itself and its ancestors, which come before it.

    Raises:
        ValueError: shapes that do not fit.
    """
    check(keys=keys, values=values, decay=decay, state=state, seen=visible, queries=queries)
    rows, nodes, groups, _ = queries.shape
    columns, heads, dim = values.shape[1:]
    out = values.new_empty(rows, nodes, heads, dim)
    if not out.numel():
        return out
    reason = objection(keys=keys, values=values, decay=decay, state=state, seen=visible, queries=queries)
    if not support.use_kernel("mamba2_tree", reason):
        return reference.attend(
            queries=queries, keys=keys, values=values, decay=decay, state=state, visible=visible
        )
    small, large = (choice for choice in ATTEND if choice.types["values"] == f"*{TYPES[values.dtype]}")
    configuration = small if nodes <= small.constants["NODES"] else large
    configuration.launch(
        (
            rows * heads,
            -(-nodes // configuration.constants["NODES"]),
            -(-dim // configuration.constants["DIM"]),
        ),
        queries=queries,
        keys=keys,
        values=values,
        decay=decay,
        state=state,
        visible=visible,
        out=out,
        **strides_of("query_row query_node query_group", queries),
        **strides_of("mask_row mask_node", visible),
        **strides_and_sizes(keys, values, decay, state),
        nodes=nodes,
        columns=columns,
        heads=heads,
        groups=groups,
    )
    return out


def replay(*, keys: Tensor, values: Tensor, decay: Tensor, state: Tensor, kept: Tensor) -> Tensor:
    """The state after committing the columns `kept`, bool `[rows, columns]`; the others are dropped."""
    return replay_all(keys=[keys], values=[values], decay=[decay], state=[state], kept=kept)[0]


def replay_all(
    *,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    decay: Sequence[Tensor],
    state: Sequence[Tensor],
    kept: Tensor,
) -> list[Tensor]:
    """`replay` of several layers, in one launch for all of one memory layout.

    Raises:
        ValueError: shapes that do not fit.
    """
    layers = list(zip(keys, values, decay, state, strict=True))
    for key, value, step, layer_state in layers:
        check(keys=key, values=value, decay=step, state=layer_state, seen=kept)
    if not kept.shape[1]:
        return list(state)

    def why_not(layer: Layer) -> str | None:
        key, value, step, layer_state = layer
        return objection(keys=key, values=value, decay=step, state=layer_state, seen=kept)

    def launch(plan: Tensor, group: Sequence[Layer]) -> None:
        rows, heads, dim, size = group[0][-1].shape
        configuration = next(
            choice for choice in REPLAY if choice.constants["TYPE"] == TYPES[group[0][0].dtype]
        )
        configuration.launch(
            (
                len(group) * rows * heads,
                -(-dim // configuration.constants["DIM"]),
                -(-size // configuration.constants["SIZE"]),
            ),
            plan=plan,
            kept=kept,
            **strides_and_sizes(*group[0]),
            **strides_of("kept_row", kept),
            columns=kept.shape[1],
            rows=rows,
            heads=heads,
            groups=group[0][0].shape[2],
        )

    def by_reference(key: Tensor, value: Tensor, step: Tensor, layer_state: Tensor) -> Tensor:
        return reference.replay(keys=key, values=value, decay=step, state=layer_state, kept=kept)

    return replay_layers("mamba2_tree", layers, objection=why_not, launch=launch, reference=by_reference)


def strides_and_sizes(keys: Tensor, values: Tensor, decay: Tensor, state: Tensor) -> dict[str, int]:
    """Strides and sizes, as the kernels take them."""
    return {
        **strides_of("key_row key_column key_group", keys),
        **strides_of("value_row value_column value_head", values),
        **strides_of("decay_row decay_column", decay),
        **strides_of("state_row state_head state_dim", state),
        "dim": state.shape[2],
        "size": state.shape[3],
    }


def check(
    *, keys: Tensor, values: Tensor, decay: Tensor, state: Tensor, seen: Tensor, queries: Tensor | None = None
) -> None:
    """`ValueError` where shapes do not fit; `seen` is a mask of nodes, or of the columns kept."""
    rows, columns, groups, size = keys.shape
    heads, dim = values.shape[2:]
    shapes = {
        "values": (values, (rows, columns, heads, dim)),
        "decay": (decay, (rows, columns, heads)),
        "state": (state, (rows, heads, dim, size)),
        "the mask": (seen, (rows, *seen.shape[1:-1], columns)),
    }
    if queries is not None:
        shapes["queries"] = (queries, (rows, seen.shape[1], groups, size))
    check_shapes(f"keys of {tuple(keys.shape)}", shapes)
    if heads % groups:
        raise ValueError(f"{heads} heads cannot share {groups} groups of keys; give a divisor of {heads}.")
    if seen.dtype != torch.bool or (seen.dim() == 3 and seen.shape[1] > columns):
        raise ValueError(
            f"The mask is {seen.dtype} {tuple(seen.shape)}; give one bool per node and column, where the "
            "new nodes are the last columns."
        )


def objection(
    *, keys: Tensor, values: Tensor, decay: Tensor, state: Tensor, seen: Tensor, queries: Tensor | None = None
) -> str | None:
    """Returns why no kernel supports such tensors; None where one does."""
    if (reason := support.objection(values)) is not None:
        return reason
    vectors = {"keys": keys, "values": values} | ({} if queries is None else {"queries": queries})
    if len(dtypes := {tensor.dtype for tensor in vectors.values()}) > 1 or not dtypes <= TYPES.keys():
        return f"{' and '.join(vectors)} are {' and '.join(sorted(map(str, dtypes)))}"
    if decay.dtype != torch.float32 or state.dtype != torch.float32:
        return f"the decay is {decay.dtype} and the state {state.dtype}, not torch.float32"
    if state.shape[2] % 16 or state.shape[3] % 16:
        return f"a head's state is {state.shape[2]} by {state.shape[3]}, which are no multiples of 16"
    return layout_objection(**vectors, state=state) or scalar_layout_objection(decay=decay, mask=seen)
