"""Chooses between the kernel and the reference of a real-gated linear recurrence along a tree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from draftwood.kernels import support
from draftwood.kernels.configuration import TYPES, Configuration
from draftwood.kernels.lru_tree import reference, traced
from draftwood.kernels.mamba1_tree.reference import Paths
from draftwood.kernels.tensor_checks import (
    check_shapes,
    dtype_objection,
    scalar_layout_objection,
    strides_of,
)
from draftwood.kernels.tree_conv import dispatch as tree_conv

CONFIGURATIONS = tuple(
    Configuration(
        name=kind,
        kernel="draftwood.kernels.lru_tree.kernel:attend",
        types={
            **dict.fromkeys(("values", "outputs", "decay", "state"), f"*{kind}"),
            **{"order": "*i32", "lengths": "*i32", "out": f"*{kind}"},
            **dict.fromkeys(("value_row", "value_node", "output_row", "output_column"), "i32"),
            **dict.fromkeys(("decay_row", "decay_node", "state_row", "nodes", "columns", "channels"), "i32"),
        },
        constants={"CHANNELS": 128},
    )
    for kind in TYPES.values()
)


def attend(*, values: Tensor, outputs: Tensor, decay: Tensor, state: Tensor, paths: Paths) -> Tensor:
    """Outputs `[rows, nodes, channels]` of the new nodes, which are their states too.

    Args:
        values: gated inputs of the new nodes, `[rows, nodes, channels]`.
        outputs: of the older columns, `[rows, columns - nodes, channels]`.
        decay: the log decay of the new nodes, `[rows, nodes, channels]`, at most 0; -inf forgets all.
        state: committed, `[rows, channels]`.
        paths: of the new nodes, one for all layers of a pass.

    Raises:
        ValueError: shapes that do not fit.
    """
    rows, nodes, channels = values.shape
    columns = outputs.shape[1] + nodes
    shapes = {
        "outputs": (outputs, (rows, columns - nodes, channels)),
        "decay": (decay, (rows, nodes, channels)),
        "state": (state, (rows, channels)),
        "the mask": (paths.visible, (rows, nodes, columns)),
    }
    check_shapes(f"values of {tuple(values.shape)}", shapes)
    out = values.new_empty(rows, nodes, channels)
    if not out.numel():
        return out
    if torch.compiler.is_compiling() or support.traced():
        visible = paths.visible
        return traced.attend(values=values, outputs=outputs, decay=decay, state=state, visible=visible)
    reason = dtype_objection(values, outputs, decay, state) or scalar_layout_objection(
        values=values, outputs=outputs, decay=decay, state=state
    )
    if not support.use_kernel("lru_tree", reason):
        return reference.attend(values=values, outputs=outputs, decay=decay, state=state, paths=paths)
    configuration = next(
        choice for choice in CONFIGURATIONS if choice.types["values"] == f"*{TYPES[values.dtype]}"
    )
    configuration.launch(
        (rows * nodes, -(-channels // configuration.constants["CHANNELS"])),
        values=values,
        outputs=outputs,
        decay=decay,
        state=state,
        order=paths.order,
        lengths=paths.lengths,
        out=out,
        **strides_of("value_row value_node", values),
        **strides_of("output_row output_column", outputs),
        **strides_of("decay_row decay_node", decay),
        **strides_of("state_row", state),
        nodes=nodes,
        columns=columns,
        channels=channels,
    )
    return out


def replay(*, outputs: Tensor, state: Tensor, kept: Tensor) -> Tensor:
    """The state after committing the columns `kept`, bool `[rows, columns]`; the others are dropped."""
    return replay_all(outputs=[outputs], state=[state], kept=kept)[0]


def replay_all(*, outputs: Sequence[Tensor], state: Sequence[Tensor], kept: Tensor) -> list[Tensor]:
    """`replay` of several layers; that of a convolution whose tail is one input long.

    Raises:
        ValueError: shapes that do not fit.
    """
    tails = [layer_state.unsqueeze(1) for layer_state in state]
    return [tail.squeeze(1) for tail in tree_conv.replay_all(inputs=outputs, state=tails, kept=kept)]
