"""Chooses between the kernels and the reference of Mamba-1 along a tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.configuration import TYPES, Configuration
from draftwood.kernels.layer_batch import Layer, replay_layers
from draftwood.kernels.mamba1_tree import reference, traced
from draftwood.kernels.mamba1_tree.reference import Paths
from draftwood.kernels.tensor_checks import check_shapes, scalar_layout_objection, strides_of

__all__ = ["Paths", "attend", "replay", "replay_all"]

TILES = {16: 64, 64: 16}
"""Channels of a tile, by the numbers of states for which it has room."""

STRIDES = (
    *("key_row", "key_column", "key_group", "value_row", "value_column", "step_row", "step_column"),
    *("rate_channel", "state_row", "state_channel"),
)

ATTEND = tuple(
    Configuration(
        name=f"{kind}, up to {size} states",
        kernel="draftwood.kernels.mamba1_tree.kernel:attend",
        types={
            **dict.fromkeys(("queries", "keys", "values"), f"*{kind}"),
            **dict.fromkeys(("steps", "rates", "state"), "*fp32"),
            **{"order": "*i32", "lengths": "*i32", "out": f"*{kind}"},
            **dict.fromkeys(("query_row", "query_node", "query_group", *STRIDES), "i32"),
            **dict.fromkeys(("nodes", "columns", "channels", "size"), "i32"),
        },
        constants={"CHANNELS": channels, "SIZE": size},
    )
    for kind in TYPES.values()
    for size, channels in TILES.items()
)

REPLAY = tuple(
    Configuration(
        name=f"{kind}, up to {size} states",
        kernel="draftwood.kernels.mamba1_tree.kernel:replay",
        types={
            **{"plan": "*i64", "kept": "*i1"},
            **dict.fromkeys((*STRIDES, "kept_row", "columns", "rows", "channels", "size"), "i32"),
        },
        constants={"TYPE": kind, "CHANNELS": channels, "SIZE": size},
    )
    for kind in TYPES.values()
    for size, channels in TILES.items()
)

CONFIGURATIONS = ATTEND + REPLAY


def attend(
    *,
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    steps: Tensor,
    rates: Tensor,
    state: Tensor,
    paths: Paths,
) -> Tensor:
    """Outputs `[rows, nodes, channels]` of the new nodes, in the dtype of `values`.

    Args:
        queries: C of the new nodes, `[rows, nodes, groups, n]`.
        keys: B, `[rows, columns, groups, n]`.
        values: the inputs times their step, `[rows, columns, channels]`.
        steps: the steps, `[rows, columns, channels]`.
        rates: A, `[channels, n]`, below 0; a step decays the state by `exp(step A)`.
        state: committed, `[rows, channels, n]`.
        paths: of the new nodes, one for all layers of a pass.

    Raises:
        ValueError: shapes that do not fit.
    """
    _check(keys, values, steps, rates, state)
    rows, nodes, columns = paths.visible.shape
    if queries.shape != (rows, nodes, *keys.shape[2:]) or keys.shape[:2] != (rows, columns):
        raise ValueError(
            f"Queries of {tuple(queries.shape)} and keys of {tuple(keys.shape)} do not fit paths of {rows} "
            f"rows, {nodes} nodes and {columns} columns."
        )
    channels, size = rates.shape
    out = values.new_empty(rows, nodes, channels)
    if not out.numel():
        return out
    if torch.compiler.is_compiling():
        return traced.attend(
            queries=queries,
            keys=keys,
            values=values,
            steps=steps,
            rates=rates,
            state=state,
            visible=paths.visible,
        )
    reason = _objection(keys, values, steps, rates, state) or _queries_objection(queries, keys)
    if not support.use_kernel("mamba1_tree", reason):
        return reference.attend(
            queries=queries, keys=keys, values=values, steps=steps, rates=rates, state=state, paths=paths
        )
    configuration = next(
        choice
        for choice in ATTEND
        if choice.types["values"] == f"*{TYPES[values.dtype]}" and size <= choice.constants["SIZE"]
    )
    groups = keys.shape[2]
    configuration.launch(
        (rows * nodes, groups, -(-channels // groups // configuration.constants["CHANNELS"])),
        queries=queries,
        keys=keys,
        values=values,
        steps=steps,
        rates=rates,
        state=state,
        order=paths.order,
        lengths=paths.lengths,
        out=out,
        **strides_of("query_row query_node query_group", queries),
        **_strides(keys, values, steps, rates, state),
        nodes=nodes,
        columns=columns,
        channels=channels,
        size=size,
    )
    return out


def replay(
    *, keys: Tensor, values: Tensor, steps: Tensor, rates: Tensor, state: Tensor, kept: Tensor
) -> Tensor:
    """The state after committing the columns `kept`, bool `[rows, columns]`; the others are dropped."""
    return replay_all(keys=[keys], values=[values], steps=[steps], rates=[rates], state=[state], kept=kept)[0]


def replay_all(
    *,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    steps: Sequence[Tensor],
    rates: Sequence[Tensor],
    state: Sequence[Tensor],
    kept: Tensor,
) -> list[Tensor]:
    """`replay` of several layers, in one launch for all of one memory layout.

    Raises:
        ValueError: shapes that do not fit.
    """
    layers = list(zip(keys, values, steps, rates, state, strict=True))
    for layer in layers:
        _check(*layer)
        if kept.shape != layer[0].shape[:2]:
            raise ValueError(f"The mask is {tuple(kept.shape)}, and keys are {tuple(layer[0].shape)}.")
    if not kept.shape[1]:
        return list(state)

    def why_not(layer: Layer) -> str | None:
        return _objection(*layer) or scalar_layout_objection(mask=kept)

    def launch(plan: Tensor, group: Sequence[Layer]) -> None:
        keys, state = group[0][0], group[0][-1]
        rows, channels, size = state.shape
        configuration = next(
            choice
            for choice in REPLAY
            if choice.constants["TYPE"] == TYPES[keys.dtype] and size <= choice.constants["SIZE"]
        )
        groups = keys.shape[2]
        configuration.launch(
            (len(group) * rows, groups, -(-channels // groups // configuration.constants["CHANNELS"])),
            plan=plan,
            kept=kept,
            **_strides(*group[0]),
            **strides_of("kept_row", kept),
            columns=kept.shape[1],
            rows=rows,
            channels=channels,
            size=size,
        )

    def by_reference(keys: Tensor, values: Tensor, steps: Tensor, rates: Tensor, state: Tensor) -> Tensor:
        return reference.replay(keys=keys, values=values, steps=steps, rates=rates, state=state, kept=kept)

    return replay_layers("mamba1_tree", layers, objection=why_not, launch=launch, reference=by_reference)


def _strides(keys: Tensor, values: Tensor, steps: Tensor, rates: Tensor, state: Tensor) -> dict[str, int]:
    return {
        **strides_of("key_row key_column key_group", keys),
        **strides_of("value_row value_column", values),
        **strides_of("step_row step_column", steps),
        **strides_of("rate_channel", rates),
        **strides_of("state_row state_channel", state),
    }


def _check(keys: Tensor, values: Tensor, steps: Tensor, rates: Tensor, state: Tensor) -> None:
    rows, columns, groups, size = keys.shape
    channels = rates.shape[0]
    shapes = {
        "values": (values, (rows, columns, channels)),
        "steps": (steps, (rows, columns, channels)),
        "rates": (rates, (channels, size)),
        "state": (state, (rows, channels, size)),
    }
    check_shapes(f"keys of {tuple(keys.shape)} with rates of {tuple(rates.shape)}", shapes)
    if channels % groups:
        raise ValueError(f"{channels} channels cannot share {groups} groups of keys; give a divisor.")


def _objection(keys: Tensor, values: Tensor, steps: Tensor, rates: Tensor, state: Tensor) -> str | None:
    if (reason := support.objection(values)) is not None:
        return reason
    if keys.dtype != values.dtype or keys.dtype not in TYPES:
        return f"keys are {keys.dtype} and values {values.dtype}"
    if {tensor.dtype for tensor in (steps, rates, state)} != {torch.float32}:
        return f"steps are {steps.dtype}, rates {rates.dtype} and the state {state.dtype}, not torch.float32"
    if rates.shape[1] > max(TILES):
        return f"a channel has {rates.shape[1]} states, and the kernel holds {max(TILES)}"
    return scalar_layout_objection(keys=keys, values=values, steps=steps, rates=rates, state=state)


def _queries_objection(queries: Tensor, keys: Tensor) -> str | None:
    if queries.dtype != keys.dtype:
        return f"queries are {queries.dtype} and keys {keys.dtype}"
    return scalar_layout_objection(queries=queries)
