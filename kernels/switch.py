"""Whether a kernel or its reference serves a call: one switch for all kernels, and what all of them ask."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

log = logging.getLogger(__name__)

SWITCH = "DRAFTWOOD_KERNELS"
"""Environment variable: `off` serves every call by the references."""

_choice: bool | None = None
_logged: set[tuple[str, str]] = set()


def enabled() -> bool:
    """Whether kernels may run at all: what `switched` says, else the environment."""
    if _choice is not None:
        return _choice
    return os.environ.get(SWITCH, "on").lower() not in ("off", "0", "false", "no")


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Inside it kernels may run, or not, whatever the environment says. Not for several threads."""
    global _choice
    before, _choice = _choice, on
    try:
        yield
    finally:
        _choice = before


def interpreted() -> bool:
    """Whether Triton's interpreter runs kernels, on CPU tensors too; for tests, it is slow."""
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "y", "yes")


def objection(first: Tensor) -> str | None:
    """Why no kernel may run over tensors like `first`, as the end of a sentence; None where one may."""
    return objection_on(first.device)


def objection_on(device: torch.device) -> str | None:
    """Why no kernel may run on `device`; None where one may."""
    if not enabled():
        return "kernels are switched off"
    if not interpreted():
        if device.type != "cuda":
            return f"its tensors are on the {device.type.upper()}"
        if (reason := _device_objection(device)) is not None:
            return reason
    if not _has_triton():
        return "triton is not installed"
    return None


def layout_objection(multiple: int = 16, /, **tensors: Tensor) -> str | None:
    """Why tensors, given by name, do not lie in memory as kernels read them; None where they do.

    Asked for: a contiguous last axis, other strides in such multiples of elements (an axis of one element
    aside), addresses in multiples of 16 bytes, and strides below 2^31. So every call is one of the
    configurations that were compiled ahead of time.
    """
    for name, tensor in tensors.items():
        *outer, last = strides(tensor)
        if tensor.shape[-1] > 1 and last != 1:
            return f"{name} is not contiguous along its last axis"
        if any(stride % multiple for stride in outer):
            return f"{name} has strides {tuple(outer)}, which are not multiples of {multiple}"
        if any(stride >= 2**31 for stride in outer):
            return f"{name} has strides {tuple(outer)}, of which one exceeds 32 bits"
        if tensor.data_ptr() % 16:
            return f"{name} starts at an address that is not a multiple of 16 bytes"
    return None


def strides(tensor: Tensor) -> list[int]:
    """Strides in elements, 0 where an axis has one element and its stride may be anything."""
    return [stride if size > 1 else 0 for stride, size in zip(tensor.stride(), tensor.shape, strict=True)]


def chosen(operation: str, reason: str | None) -> bool:
    """Whether the kernel of `operation` runs, which it does without a `reason`; logs each choice once."""
    if (operation, reason or "") not in _logged:
        _logged.add((operation, reason or ""))
        if reason is None:
            log.info("%s: the Triton kernel serves it.", operation)
        else:
            log.info("%s: the reference serves it, because %s.", operation, reason)
    return reason is None


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@cache
def _device_objection(device: torch.device) -> str | None:
    if torch.version.cuda is None:
        return "the kernels are made for CUDA"
    capability = torch.cuda.get_device_capability(device)
    if capability < (8, 0):
        return f"the device has compute capability {capability[0]}.{capability[1]}, and the kernels need 8.0"
    return None
