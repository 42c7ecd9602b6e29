"""A device that says it is CUDA, holds real numbers on the CPU, and counts what it is asked to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

import draftwood
from tests.counting_device import attention
from tests.counting_device.counts import Counts, Event, Kind
from tests.counting_device.guard import cuda_guard
from tests.counting_device.operations import operation_of
from tests.counting_device.tensor import DeviceTensor, held
from tests.counting_device.triton_kernels import launched_on

ROOT = Path(draftwood.__file__).resolve().parents[1]
PROJECT = tuple(f"{ROOT / folder}/" for folder in ("framework", "strategies", "backends", "kernels"))

PROPERTIES = SimpleNamespace(multi_processor_count=132, major=9, minor=0, name="counting device")
"""What code asks of a device: those of an H100."""

_lines: dict[str, str | None] = {}
"""By file: its path in the project; None for those of others."""


class CountingDevice(TorchDispatchMode):
    """Runs torch's operations on `DeviceTensor`s, and counts them; `counting_device` makes one.

    Attributes:
        counts: what it was asked to do so far.
    """

    def __init__(self) -> None:
        super().__init__()
        # As the mode of fake tensors, it keeps torch from looking for a GPU.
        self._mode_key = torch._C._TorchDispatchModeKey.FAKE
        self.counts = Counts()
        self._phase: tuple[str, ...] = ()
        self._modules = 0  # how many of them are running, one inside the other
        self._blank = False

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Inside it, events are of the phase `name` too; inside itself a phase is still one."""
        before = self._phase
        self._phase = before if before[-1:] == (name,) else (*before, name)
        try:
            yield
        finally:
            self._phase = before

    @contextmanager
    def blank_memory(self) -> Iterator[None]:
        """Inside it, what is allocated holds zeros."""
        before, self._blank = self._blank, True
        try:
            yield
        finally:
            self._blank = before

    def waits(self, operation: str) -> None:
        """Count a wait."""
        self.count(Kind.WAIT, operation)

    def launches(self, kernel: str) -> None:
        """Count a launch."""
        self.count(Kind.LAUNCH, kernel)

    def count(self, kind: Kind, operation: str, times: int = 1) -> None:
        """Count `times` events."""
        event = Event(kind, operation, self._phase, project_line(), self._modules > 0)
        self.counts.events[event] += times

    def enters_module(self, *_: Any) -> None:
        """A torch module begins to run."""
        self._modules += 1

    def leaves_module(self, *_: Any) -> None:
        """It has ended."""
        self._modules -= 1

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # what skips it costs more than the counting

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Returns the result of torch's operation `func`, counted where tensors of the device take part."""
        tensors = list(_tensors((*args, *kwargs.values())))
        asked = None if kwargs.get("device") is None else torch.device(kwargs["device"])
        to_device = asked is not None and asked.type == "cuda"
        if not to_device and not any(isinstance(one, DeviceTensor) for one in tensors):
            return func(*args, **_for_the_cpu(kwargs))
        if asked is not None and (asked.index or 0) > 0:
            raise RuntimeError(f"CUDA error: invalid device ordinal ({asked}; the counting device is cuda:0)")
        operation = operation_of(func)
        if operation.name == "_to_copy":
            return self._to_copy(func, args[0], kwargs, leaves=asked is not None and not to_device)
        if operation.name == "copy_":
            return self._copy_into(func, *args, **kwargs)
        if torch.is_inference_mode_enabled() and func._can_decompose():
            with self:
                if operation.name == attention.OPERATION:
                    return attention.attend(self.launches, *args, **kwargs)
                return func.decompose(*args, **kwargs)
        if (misfit := operation.misfit(args, kwargs, tensors)) is not None:
            raise RuntimeError(misfit)
        if operation.reshapes:
            raise NotImplementedError(
                f"{operation.name} changes the shape of a tensor in place, which the counting device cannot."
            )
        if (waited := operation.waits(args, kwargs)) is not None:
            self.waits(waited)
        if copies := operation.copies(args, kwargs):
            self.count(Kind.BLOCKING_COPY, operation.name, copies)
        result = func(*held(args), **_for_the_cpu({key: held(value) for key, value in kwargs.items()}))
        if self._blank and operation.allocates:
            result.zero_()
        if times := operation.launches(args, kwargs, result):
            self.count(Kind.LAUNCH, operation.name, times)
        return _on_device(result)

    def _to_copy(self, func: Any, source: Tensor, options: dict[str, Any], *, leaves: bool) -> Tensor:
        """A copy in another dtype or place; `leaves` the device, or stays on it, or goes to it."""
        later = options.get("non_blocking", False)
        copy: Tensor = func(held(source), **_for_the_cpu(options))
        if copy.numel():  # else nothing is moved
            if not isinstance(source, DeviceTensor):
                self.count(Kind.COPY if later else Kind.BLOCKING_COPY, "to the device")
            elif not leaves or copy.dtype != source.dtype:
                self.launches("_to_copy")
            if leaves:
                self.count(Kind.COPY_BACK if later else Kind.WAIT, "to the CPU")
        return copy if leaves else DeviceTensor(copy)

    def _copy_into(self, func: Any, target: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        """`target.copy_(source)`."""
        func(held(target), held(source))
        if not target.numel():
            pass
        elif not isinstance(target, DeviceTensor):
            self.count(Kind.COPY_BACK if non_blocking else Kind.WAIT, "copy_")
        elif isinstance(source, DeviceTensor):
            self.count(Kind.LAUNCH, "copy_")
        else:
            self.count(Kind.COPY if non_blocking else Kind.BLOCKING_COPY, "copy_")
        return target


@contextmanager
def counting_device(*, interpret: bool = False) -> Iterator[CountingDevice]:
    """Inside it `"cuda"` works, and what comes of it counts what it is asked to do.

    A tensor there is a `DeviceTensor`. It raises where CUDA raises: tensors of the CPU together with tensors
    of the device, other than numbers and indices; products of several dtypes or of integers; `numpy()`.
    Triton kernels, where they are switched on, are launched through `Configuration.launch`. Not for several
    threads, and one at a time.

    Args:
        interpret: let Triton's interpreter run kernels, else the references of their operations give the
            numbers.
    """
    if DeviceTensor.device_of_block is not None:
        raise RuntimeError("A counting device is running already; leave its `with` block first.")
    device = CountingDevice()
    with ExitStack() as stack:
        stack.enter_context(cuda_guard())
        stack.enter_context(patch.object(DeviceTensor, "device_of_block", device))
        # Tensors made from numbers go to the device by a copy, as they do on CUDA.
        stack.callback(torch._C._set_only_lift_cpu_tensors, torch._C._only_lift_cpu_tensors())
        torch._C._set_only_lift_cpu_tensors(True)
        stack.enter_context(attention.in_one_kernel(device.launches))
        stack.enter_context(launched_on(device, interpret=interpret))
        stack.enter_context(patch("torch.cuda.get_device_properties", lambda *_: PROPERTIES))
        stack.enter_context(patch("torch.cuda.synchronize", lambda *_: device.waits("synchronize")))
        stack.enter_context(patch.object(Tensor, "pin_memory", lambda tensor, *_: tensor.clone()))
        stack.callback(register_module_forward_pre_hook(device.enters_module).remove)
        stack.callback(register_module_forward_hook(device.leaves_module, always_call=True).remove)
        yield stack.enter_context(device)


def project_line() -> str:
    """The nearest line of the project that is running."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if name not in _lines:
            inside = name.startswith(PROJECT)
            _lines[name] = str(Path(name).relative_to(ROOT).as_posix()) if inside else None
        if (path := _lines[name]) is not None:
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return "outside the project"


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _for_the_cpu(options: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments without what the CPU does not have."""
    elsewhere = {"device": torch.device("cpu"), "pin_memory": False}
    changed = {key: value for key, value in elsewhere.items() if options.get(key) is not None}
    return {**options, **changed} if changed else options


def _on_device(result: Any) -> Any:
    if isinstance(result, Tensor):
        return DeviceTensor(result)
    return type(result)(map(_on_device, result)) if isinstance(result, (list, tuple)) else result
