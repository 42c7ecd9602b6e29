"""Chooses between the kernels and the reference of convolution along a tree."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.configuration import TYPES, Configuration
from draftwood.kernels.layer_batch import Layer, replay_layers
from draftwood.kernels.tensor_checks import (
    check_shapes,
    dtype_objection,
    scalar_layout_objection,
    strides_of,
)
from draftwood.kernels.tree_conv import reference
from draftwood.kernels.tree_conv.reference import windows

__all__ = ["attend", "replay", "replay_all", "windows"]

WIDEST = 8

STRIDES = ("input_row", "input_column", "state_row", "state_column")

ATTEND = tuple(
    Configuration(
        name=f"{kind}, up to {taps} wide",
        kernel="draftwood.kernels.tree_conv.kernel:attend",
        types={
            **dict.fromkeys(("inputs", "state", "weight", "bias"), f"*{kind}"),
            **{"window": "*i64", "out": f"*{kind}"},
            **dict.fromkeys((*STRIDES, "weight_channel", "weight_tap", "window_row", "window_node"), "i32"),
            **dict.fromkeys(("nodes", "channels", "width", "has_bias"), "i32"),
        },
        constants={"NODES": 4, "CHANNELS": 128, "TAPS": taps},
    )
    for kind in TYPES.values()
    for taps in (4, WIDEST)
)

REPLAY = tuple(
    Configuration(
        name=f"{size} bytes",
        kernel="draftwood.kernels.tree_conv.kernel:replay",
        types={
            **{"plan": "*i64", "kept": "*i1"},
            **dict.fromkeys((*STRIDES, "kept_row", "columns", "rows", "channels", "tail"), "i32"),
        },
        constants={"BYTES": size, "COLUMNS": 16, "CHANNELS": 128, "TAPS": WIDEST},
    )
    for size in (2, 4)
)

CONFIGURATIONS = ATTEND + REPLAY


def attend(*, inputs: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, window: Tensor) -> Tensor:
    """Outputs `[rows, nodes, channels]` of the new nodes, in the dtype of `inputs`.

    Args:
        inputs: `[rows, columns, channels]`.
        state: the last committed inputs, `[rows, width - 1, channels]`; zeros before the text.
        weight: `[channels, width]`, the oldest input's first.
        bias: `[channels]` or None.
        window: of `windows`.

    Raises:
        ValueError: shapes that do not fit.
    """
    rows, _, channels = inputs.shape
    nodes, width = window.shape[1:]
    shapes = {
        "state": (state, (rows, width - 1, channels)),
        "weight": (weight, (channels, width)),
        "window": (window, (rows, nodes, width)),
    }
    if bias is not None:
        shapes["bias"] = (bias, (channels,))
    check_shapes(f"inputs of {tuple(inputs.shape)}", shapes)
    out = inputs.new_empty(rows, nodes, channels)
    if not out.numel():
        return out
    if not support.use_kernel("tree_conv", _objection(inputs, state, weight, bias, window)):
        return reference.attend(inputs=inputs, state=state, weight=weight, bias=bias, window=window)
    configuration = next(
        choice
        for choice in ATTEND
        if choice.types["inputs"] == f"*{TYPES[inputs.dtype]}" and width <= choice.constants["TAPS"]
    )
    configuration.launch(
        (
            rows,
            -(-nodes // configuration.constants["NODES"]),
            -(-channels // configuration.constants["CHANNELS"]),
        ),
        inputs=inputs,
        state=state,
        weight=weight,
        bias=weight if bias is None else bias,
        window=window,
        out=out,
        **strides_of("input_row input_column", inputs),
        **strides_of("state_row state_column", state),
        **strides_of("weight_channel weight_tap", weight),
        **strides_of("window_row window_node", window),
        nodes=nodes,
        channels=channels,
        width=width,
        has_bias=int(bias is not None),
    )
    return out


def replay(*, inputs: Tensor, state: Tensor, kept: Tensor) -> Tensor:
    """The state after committing the columns `kept`, bool `[rows, columns]`; the others are dropped."""
    return replay_all(inputs=[inputs], state=[state], kept=kept)[0]


def replay_all(*, inputs: Sequence[Tensor], state: Sequence[Tensor], kept: Tensor) -> list[Tensor]:
    """`replay` of several layers, in one launch for all of one memory layout.

    Raises:
        ValueError: shapes that do not fit.
    """
    layers = list(zip(inputs, state, strict=True))
    for layer_inputs, tail in layers:
        rows, columns, channels = layer_inputs.shape
        shapes = {"state": (tail, (rows, *tail.shape[1:2], channels)), "the mask": (kept, (rows, columns))}
        check_shapes(f"inputs of {tuple(layer_inputs.shape)}", shapes)

    def why_not(layer: Layer) -> str | None:
        layer_inputs, tail = layer
        if (reason := support.objection(layer_inputs)) is not None:
            return reason
        if layer_inputs.dtype != tail.dtype or layer_inputs.element_size() not in (2, 4):
            return f"its inputs are {layer_inputs.dtype} and its tail is {tail.dtype}"
        if tail.shape[1] > WIDEST:
            return f"its tail has {tail.shape[1]} inputs, and the kernel holds {WIDEST}"
        return scalar_layout_objection(inputs=layer_inputs, state=tail, mask=kept)

    def launch(plan: Tensor, group: Sequence[Layer]) -> None:
        layer_inputs, tail = group[0]
        rows, columns, channels = layer_inputs.shape
        configuration = next(
            choice for choice in REPLAY if choice.constants["BYTES"] == layer_inputs.element_size()
        )
        configuration.launch(
            (len(group) * rows, -(-channels // configuration.constants["CHANNELS"])),
            plan=plan,
            kept=kept,
            **strides_of("input_row input_column", layer_inputs),
            **strides_of("state_row state_column", tail),
            **strides_of("kept_row", kept),
            columns=columns,
            rows=rows,
            channels=channels,
            tail=tail.shape[1],
        )

    def by_reference(layer_inputs: Tensor, tail: Tensor) -> Tensor:
        return reference.replay(inputs=layer_inputs, state=tail, kept=kept)

    return replay_layers("tree_conv", layers, objection=why_not, launch=launch, reference=by_reference)


def _objection(
    inputs: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, window: Tensor
) -> str | None:
    biases = {} if bias is None else {"bias": bias}
    if (reason := dtype_objection(inputs, state, weight, *biases.values())) is not None:
        return reason
    if weight.shape[1] > WIDEST:
        return f"it is {weight.shape[1]} wide, and the kernel at most {WIDEST}"
    return scalar_layout_objection(inputs=inputs, state=state, window=window, weight=weight, **biases)
