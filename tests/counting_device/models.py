"""Models on the counting device."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from tests.counting_device.tensor import DeviceTensor

Model = TypeVar("Model", bound=torch.nn.Module)


def to_device(model: Model) -> Model:
    """Move the parameters and buffers of `model` itself to the device; those that are tied stay tied."""
    moved: dict[int, Tensor] = {}

    def move(tensor: Tensor | None) -> Tensor | None:
        if tensor is None or isinstance(tensor, DeviceTensor):
            return tensor
        if id(tensor) not in moved:
            on_device: Tensor = DeviceTensor(tensor.detach())
            if isinstance(tensor, torch.nn.Parameter):
                on_device = torch.nn.Parameter(on_device, requires_grad=False)
            moved[id(tensor)] = on_device
        return moved[id(tensor)]

    for module in model.modules():
        for held in (module._parameters, module._buffers):
            held.update({name: move(tensor) for name, tensor in held.items()})  # type: ignore[arg-type, misc]
    return model
