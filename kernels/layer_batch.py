"""One launch for the layers of a model with one memory layout, by a table of their addresses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from draftwood.kernels import support

ALIGNED = 8
"""Numbers, of 2 bytes or more, that fill at least 16 bytes."""

Layer = tuple[Tensor, ...]
"""What a layer holds; its committed state `[rows, ...]` comes last."""


def replay_layers(
    operation: str,
    layers: Sequence[Layer],
    *,
    objection: Callable[[Layer], str | None],
    launch: Callable[[Tensor, Sequence[Layer]], None],
    reference: Callable[..., Tensor],
) -> list[Tensor]:
    """The new states of `layers`, which may differ in shape.

    Args:
        operation: name of the operation, for the log.
        layers: tensors of every layer; all layers have the same kinds of tensors.
        objection: why no kernel supports a layer, apart from its addresses.
        launch: runs the kernel for layers of one memory layout, of which it gets one; its plan, int64
            `[layers, tensors + 1]`, holds the addresses of every layer's tensors and of its new state,
            which is contiguous.
        reference: gives the new state for the tensors of one layer.
    """
    if torch.compiler.is_compiling():
        return [reference(*layer) for layer in layers]
    alike: dict[object, list[int]] = {}
    for index, layer in enumerate(layers):
        key = tuple((part.shape, part.stride(), part.dtype, part.device) for part in layer)
        alike.setdefault(key, []).append(index)
    states: dict[int, Tensor] = {}
    for indices in alike.values():
        group = [layers[index] for index in indices]
        plan = [[part.data_ptr() for part in layer] for layer in group]
        reason = objection(group[0])
        if reason is None and any(address % 16 for addresses in plan for address in addresses):
            reason = "a layer's tensors start at an address that is not a multiple of 16 bytes"
        if not support.use_kernel(operation, reason):
            states |= {index: reference(*layer) for index, layer in zip(indices, group, strict=True)}
            continue
        state = group[0][-1]
        # Every new state begins where the next commit can read it.
        apart = state.new_empty(len(group), -(-state.numel() // ALIGNED) * ALIGNED)
        new = [buffer[: state.numel()].view(state.shape) for buffer in apart.unbind(0)]
        if state.numel():
            table = [[*addresses, out.data_ptr()] for addresses, out in zip(plan, new, strict=True)]
            launch(torch.tensor(table).to(state.device, non_blocking=True), group)
        states |= dict(zip(indices, new, strict=True))
    return [states[index] for index in range(len(layers))]
