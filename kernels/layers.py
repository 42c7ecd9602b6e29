"""One launch for the layers of a model that lie alike in memory, by a table of their addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from draftwood.kernels import switch
from draftwood.kernels.configuration import TYPES

ALIGNED = 8
"""Numbers, of 2 bytes or more, that fill at least 16 bytes."""

Layer = tuple[Tensor, ...]
"""What a layer holds; its committed state `[rows, ...]` comes last."""


def replayed(
    operation: str,
    layers: Sequence[Layer],
    *,
    objection: Callable[[Layer], str | None],
    launch: Callable[[Tensor, Sequence[Layer]], None],
    reference: Callable[..., Tensor],
) -> list[Tensor]:
    """The new states of `layers`, which may differ in shape.

    Args:
        operation: for the log.
        layers: all alike in what their tensors are.
        objection: why no kernel serves a layer, its addresses aside.
        launch: runs the kernel for layers that lie alike, of which it gets one; its plan, int64
            `[layers, tensors + 1]`, holds the addresses of every layer's tensors and of its new state,
            which is contiguous.
        reference: gives the new state for the tensors of one layer.
    """
    alike: dict[object, list[int]] = {}
    for place, layer in enumerate(layers):
        key = tuple((held.shape, held.stride(), held.dtype, held.device) for held in layer)
        alike.setdefault(key, []).append(place)
    found: dict[int, Tensor] = {}
    for places in alike.values():
        group = [layers[place] for place in places]
        plan = [[held.data_ptr() for held in layer] for layer in group]
        reason = objection(group[0])
        if reason is None and any(address % 16 for addresses in plan for address in addresses):
            reason = "a layer's tensors start at an address that is not a multiple of 16 bytes"
        if not switch.chosen(operation, reason):
            found |= {place: reference(*layer) for place, layer in zip(places, group, strict=True)}
            continue
        state = group[0][-1]
        # Every new state begins where the next commit can read it.
        apart = state.new_empty(len(group), -(-state.numel() // ALIGNED) * ALIGNED)
        new = [held[: state.numel()].view(state.shape) for held in apart.unbind(0)]
        if state.numel():
            table = [[*addresses, out.data_ptr()] for addresses, out in zip(plan, new, strict=True)]
            launch(torch.tensor(table).to(state.device, non_blocking=True), group)
        found |= dict(zip(places, new, strict=True))
    return [found[place] for place in range(len(layers))]


def strides_of(names: str, tensor: Tensor) -> dict[str, int]:
    """The leading strides of `tensor` by these names, separated by spaces; 0 along axes of one element."""
    return dict(zip(names.split(), switch.strides(tensor), strict=False))


def loose_objection(**tensors: Tensor) -> str | None:
    """As `switch.layout_objection`, of tensors of which one number is read at a time: any strides will do."""
    return switch.layout_objection(1, **tensors)


def fit(basis: str, wanted: Mapping[str, tuple[Tensor, tuple[int, ...]]]) -> None:
    """Compare tensors, by name, with the shapes that `basis` asks of them.

    Raises:
        ValueError: a shape is another.
    """
    for name, (given, shape) in wanted.items():
        if given.shape != shape:
            raise ValueError(f"The shape of {name} is {tuple(given.shape)}, and {basis} need {shape}.")


def objection(*tensors: Tensor) -> str | None:
    """Why no kernel takes `tensors`, which must be of one dtype, their layout aside; None where one does."""
    if (reason := switch.objection(tensors[0])) is not None:
        return reason
    dtypes = {tensor.dtype for tensor in tensors}
    if len(dtypes) > 1 or not dtypes <= TYPES.keys():
        return f"its tensors are {' and '.join(sorted(map(str, dtypes)))}"
    return None
