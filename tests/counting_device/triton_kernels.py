"""Triton kernels on the counting device: every launch is counted, and takes no tensors of the CPU.

In the interpreter a round of the zoo's state-space pair takes ten seconds of a CPU, by references a tenth of
one. So kernels are launched for their count alone, unless asked for otherwise, and the operation's reference
gives the numbers.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from draftwood.kernels import support
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.support import kernels_enabled
from draftwood.kernels.tree_rejection import reference as tree_rejection
from tests.counting_device.tensor import DeviceTensor, held

ENTRIES = ("attend", "draw", "move", "replay_all", "walk")
"""What a dispatcher is called by, of which it has some."""


class Launches(Protocol):
    """What counts launches."""

    def launches(self, kernel: str) -> None:
        """Count a launch of `kernel`."""
        ...


@contextmanager
def launched_on(device: Launches, *, interpret: bool) -> Iterator[None]:
    """Inside it `Configuration.launch` launches on `device`; arguments as of `counting_device`."""
    run = Configuration.launch
    dry: list[bool] = []  # of every dispatcher that is running: whether it has launched

    def launch(self: Configuration, grid: tuple[int, ...], **arguments: Any) -> None:
        for name, value in arguments.items():
            if isinstance(value, Tensor) and not isinstance(value, DeviceTensor):
                raise ValueError(f"Pointer argument {name} cannot be accessed from Triton (cpu tensor?)")
        device.launches(f"{self.operation}:{self.kernel.rpartition(':')[2]}")
        if dry:
            dry[-1] = True
            return
        with _disable_current_modes():
            run(self, grid, **{name: held(value) for name, value in arguments.items()})

    def by_reference(entry: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(entry)
        def call(*args: Any, **kwargs: Any) -> Any:
            dry.append(False)
            try:
                result = entry(*args, **kwargs)
            finally:
                launched = dry.pop()
            if not launched:
                return result
            with _disable_current_modes(), kernels_enabled(False):
                right = _reference(entry)(*on_the_cpu(args), **on_the_cpu(kwargs))
            return _filled(result, right)

        return call

    with ExitStack() as stack:
        stack.enter_context(patch.object(Configuration, "launch", launch))
        for entry in () if interpret else _entries():
            for module in _holders(entry):
                stack.enter_context(patch.object(module, entry.__name__, by_reference(entry)))
        yield


def on_the_cpu(value: Any) -> Any:
    """As `held`, and so are the tensors in what kernels take besides tensors."""
    if isinstance(value, (Tensor, list, tuple)):
        return held(value) if isinstance(value, Tensor) else type(value)(map(on_the_cpu, value))
    if isinstance(value, dict):
        return {key: on_the_cpu(one) for key, one in value.items()}
    if type(value).__module__.startswith(support.__package__ or ""):
        same = copy.copy(value)
        for name, one in vars(value).items():
            object.__setattr__(same, name, on_the_cpu(one))
        return same
    return value


def _filled(result: Any, right: Any) -> Any:
    """`result`, what launches would have written into, with the numbers of `right`; else `right`."""
    if isinstance(result, DeviceTensor):
        result.held.copy_(right)
        return result
    if isinstance(result, (list, tuple)) and any(isinstance(one, DeviceTensor) for one in result):
        return type(result)(map(_filled, result, right))
    return right


@functools.cache
def _entries() -> Sequence[Callable[..., Any]]:
    """Every function that launches kernels, of all operations."""
    folder = Path(str(support.__file__)).parent
    names = sorted(path.parent.name for path in folder.glob("*/dispatch.py"))
    modules = [import_module(f"{support.__package__}.{name}.dispatch") for name in names]
    return [getattr(module, name) for module in modules for name in ENTRIES if hasattr(module, name)]


def _holders(entry: Callable[..., Any]) -> list[Any]:
    """The modules that call `entry` by its name: its own, and those that import it from there."""
    modules = [module for name, module in sys.modules.items() if name.startswith("draftwood.")]
    return [module for module in modules if vars(module).get(entry.__name__) is entry]


def _reference(entry: Callable[..., Any]) -> Callable[..., Any]:
    """What computes on the CPU what `entry` does; most dispatchers do, with kernels switched off."""
    return _walk if entry.__module__.endswith("tree_rejection.dispatch") else entry


def _walk(cases: Sequence[tree_rejection.RejectionCase]) -> list[tree_rejection.Walk | None]:
    walks: list[tree_rejection.Walk | None] = []
    for case in cases:
        try:
            walks.append(tree_rejection.walk(case))
        except tree_rejection.Undecidable:
            walks.append(None)
    return walks
