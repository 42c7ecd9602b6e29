"""Triton kernels on the counting device: every launch is counted, and takes no tensors of the CPU.

In the interpreter a round of the zoo's state-space pair takes ten seconds of a CPU, by references a tenth of
one. So, unless asked for otherwise, a dispatcher runs twice: on the device, where its launches are counted
and write nothing, and on the CPU, where the operation's reference runs.
"""

from __future__ import annotations

import copy
import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from benchmarks.kernels.host_rule import host_walk
from draftwood.kernels import support
from draftwood.kernels.configuration import Configuration
from draftwood.kernels.ordered_draws import reference as ordered_draws
from draftwood.kernels.support import kernels_enabled
from draftwood.kernels.tree_plan.arrays import TreeArrays, Walk
from draftwood.strategies.verifiers.orders.class_order import ClassOrder
from draftwood.strategies.verifiers.orders.sibling_order import DrawnOrder
from draftwood.strategies.verifiers.race_traversal import RaceTraversal
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from draftwood.strategies.verifiers.walk import TreeWalk
from tests.counting_device.tensor import DeviceTensor, held
from tests.kernels.judged_trees import cases_of


class Launches(Protocol):
    """A counter of launches."""

    def launches(self, kernel: str) -> None:
        """Count a launch of `kernel`."""
        ...

    def blank_memory(self) -> AbstractContextManager[None]:
        """Inside it, what is allocated holds zeros."""
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
                # Launches write nothing, and what was never written is not worth a warning.
                with device.blank_memory():
                    result = entry(*args, **kwargs)
            finally:
                launched = dry.pop()
            if not launched:
                return result
            with _disable_current_modes(), kernels_enabled(False):
                right = _on_the_cpu(entry, without_device(args), without_device(kwargs), run=run)
            return _filled(result, right)

        return call

    with ExitStack() as stack:
        stack.enter_context(patch.object(Configuration, "launch", launch))
        for entry in () if interpret else _entries():
            for module in _holders(entry):
                stack.enter_context(patch.object(module, entry.__name__, by_reference(entry)))
        yield


def without_device(value: Any) -> Any:
    """Returns `value` with its tensors, also nested ones, as `held` gives them; the device is the CPU."""
    if isinstance(value, torch.device):
        return torch.device("cpu")
    if isinstance(value, (Tensor, list, tuple)):
        return held(value) if isinstance(value, Tensor) else type(value)(map(without_device, value))
    if isinstance(value, dict):
        return {key: without_device(one) for key, one in value.items()}
    if type(value).__module__.startswith(support.__package__ or ""):
        same = copy.copy(value)
        for name, one in vars(value).items():
            object.__setattr__(same, name, without_device(one))
        return same
    return value


def _on_the_cpu(entry: Callable[..., Any], args: Any, kwargs: Any, *, run: Callable[..., None]) -> Any:
    """Returns the result of `entry` for CPU tensors: it chooses its reference, as kernels are off.

    One that launches without asking is interpreted, where no function of `REFERENCES` stands for it.
    """
    operation = entry.__module__.split(".")[-2]
    if (reference := REFERENCES.get(f"{operation}:{entry.__name__}")) is not None:
        right = reference(*args, **kwargs)
        if right is not NotImplemented:
            return right
    with patch.object(Configuration, "launch", run):
        return entry(*args, **kwargs)


def _rejection(trees: TreeArrays) -> list[Walk | None]:
    return [host_walk(RecursiveRejection(), case) for case in cases_of(trees)]


def _traversal(trees: TreeArrays, *, leaf_first: bool, classes: bool) -> list[Walk | None]:
    verifier = TreeWalk(ClassOrder() if classes else DrawnOrder(), leaf_first=leaf_first)
    return [host_walk(verifier, case) for case in cases_of(trees)]


def _race(trees: TreeArrays, waits: Any) -> list[Walk | None]:
    rows = zip(cases_of(trees), torch.from_numpy(waits), strict=True)
    return [host_walk(RaceTraversal(), case, of_row) for case, of_row in rows]


REFERENCES: dict[str, Callable[..., Any]] = {
    "ordered_draws:draw_on_device": ordered_draws.draw,
    "tree_race:walk": _race,
    "tree_rejection:walk": _rejection,
    "tree_traversal:walk": _traversal,
}
"""By operation and function: what gives the results of one that launches without asking."""


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
    """The public functions of every dispatcher."""
    folder = Path(str(support.__file__)).parent
    names = sorted(path.parent.name for path in folder.glob("*/dispatch.py"))
    modules = [import_module(f"{support.__package__}.{name}.dispatch") for name in names]
    return [
        one
        for module in modules
        for name, one in vars(module).items()
        if inspect.isfunction(one) and one.__module__ == module.__name__ and name[0] != "_"
    ]


def _holders(entry: Callable[..., Any]) -> list[Any]:
    """The modules that call `entry` by its name: its own, and those that import it from there."""
    modules = [module for name, module in sys.modules.items() if name.startswith("draftwood.")]
    return [module for module in modules if vars(module).get(entry.__name__) is entry]
