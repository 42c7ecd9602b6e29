"""A tensor that says it is on a CUDA device and holds its numbers on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import torch
from torch import Tensor

CUDA = torch.device("cuda", 0)


class Executor(Protocol):
    """A class that runs operations on these tensors."""

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of the operation `func`."""
        ...

    def waits(self, operation: str) -> None:
        """The host is about to read a result."""
        ...


class DeviceTensor(Tensor):
    """The numbers of `held` `[...]`, which lies on the CPU, on `cuda:0`.

    Operations on it go to the device whose `with` block is running.
    """

    held: Tensor
    device_of_block: Executor | None = None  # on the class: set by that block

    # So that torch's functions in Python see a tensor like any other.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, held: Tensor) -> DeviceTensor:
        made: DeviceTensor = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=CUDA,
            requires_grad=False,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return running_device().run(func, args, kwargs or {})

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        if self.numel():  # of an empty tensor nothing is copied
            running_device().waits("tolist")
        return self.held.tolist()

    def _no_array(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host "
            "memory first."
        )

    numpy: Callable[..., Any] = _no_array
    __array__: Callable[..., Any] = _no_array

    def __format__(self, specification: str) -> str:
        return format(self.item() if self.dim() == 0 else repr(self), specification)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        if DeviceTensor.device_of_block is not None:
            DeviceTensor.device_of_block.waits("repr")
        return f"DeviceTensor({self.held!r})"

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copy: Any = DeviceTensor(self.held.clone())
        if getattr(self, "_is_param", False):
            copy = torch.nn.Parameter(copy, requires_grad=False)
        return memo.setdefault(id(self), copy)


def running_device() -> Executor:
    """The device whose `with` block is running."""
    if DeviceTensor.device_of_block is None:
        raise RuntimeError("A tensor of the counting device is used outside of `with CountingDevice()`.")
    return DeviceTensor.device_of_block


def held(value: Any) -> Any:
    """`value` with what tensors of the device hold in their place, in lists too."""
    if isinstance(value, DeviceTensor):
        return value.held
    if isinstance(value, (list, tuple)):
        return type(value)(held(one) for one in value)
    return value
