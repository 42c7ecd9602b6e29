"""One way to compile a kernel, as data, both for launches and for compiling ahead of time."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any

import torch

TYPES: dict[torch.dtype, str] = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
"""Triton's names of the dtypes that kernels take."""


@dataclass(frozen=True)
class Configuration:
    """A kernel with the types of its arguments and its constants fixed.

    Attributes:
        name: for the table of what was compiled; unique within `kernel`.
        kernel: the module and the function, `draftwood.kernels.tree_attention.kernel:attend`.
        types: of every argument that is no constant, in order: `*fp16`, `i32`, `fp32`.
        constants: of every `tl.constexpr` argument.
        aligned: integers that are multiples of 16, which lets Triton load more at once. Every other integer
            stands in the kernel's `do_not_specialize`; every pointer is a multiple of 16 bytes.
        warps: of 32 threads, in a program.
        stages: of software pipelining.
        matrix: whether it promises matrix instructions.
    """

    name: str
    kernel: str
    types: Mapping[str, str]
    constants: Mapping[str, Any] = field(default_factory=dict)
    aligned: frozenset[str] = frozenset()
    warps: int = 4
    stages: int = 2
    matrix: bool = False

    @property
    def operation(self) -> str:
        """The folder that holds the kernel."""
        return self.kernel.split(".")[-2]

    def function(self) -> Any:
        """The kernel, a function under `triton.jit`."""
        return _function(self.kernel)

    def launch(self, grid: tuple[int, ...], **arguments: Any) -> None:
        """Run it over `grid`, with every argument that is no constant by name, where its tensors are."""
        with _current(next(value.device for value in arguments.values() if isinstance(value, torch.Tensor))):
            self.function()[grid](**arguments, **self.constants, num_warps=self.warps, num_stages=self.stages)


def _current(device: torch.device) -> AbstractContextManager[Any]:
    """Inside it `device` is the current one: Triton launches there, whatever the device of its arguments."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


@cache
def _function(kernel: str) -> Any:
    module, name = kernel.split(":")
    return getattr(import_module(module), name)
