"""Choice between a kernel and its reference: checks that all kernels share, and a way to turn kernels off."""

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

ENVIRONMENT = "DRAFTWOOD_KERNELS"
"""Environment variable: `off` runs the reference for every call."""

_override: bool | None = None
_logged: set[tuple[str, str]] = set()


def traced() -> bool:
    """Returns whether an engine's converter traces what runs, so that no shape of it is a number."""
    # Unlike what it calls, this is a constant to torch.compile, which traces the callers too.
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined,no-untyped-call]


def enabled() -> bool:
    """Returns whether kernels may run at all: what `kernels_enabled` says, else the environment."""
    if _override is not None:
        return _override
    return os.environ.get(ENVIRONMENT, "on").lower() not in ("off", "0", "false", "no")


@contextmanager
def kernels_enabled(on: bool) -> Iterator[None]:
    """Inside it kernels may run, or not, whatever the environment says. Not for several threads."""
    global _override
    before, _override = _override, on
    try:
        yield
    finally:
        _override = before


@cache
def interpreted() -> bool:
    """Returns whether Triton's interpreter runs kernels, on CPU tensors too; for tests, it is slow.

    The environment is read once, as Triton reads it, and not for every call of a round.
    """
    return os.environ.get("TRITON_INTERPRET", "").lower() in ("1", "true", "on", "y", "yes")


def objection(first: Tensor) -> str | None:
    """Returns why no kernel may run over tensors like `first`, to end a sentence; None where one may."""
    return objection_on(first.device)


def objection_on(device: torch.device) -> str | None:
    """Returns why no kernel may run on `device`; None where one may."""
    if torch.compiler.is_compiling():
        return "the call is traced"
    if device.type == "cpu" and not interpreted():
        return "its tensors are on the CPU"
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


def use_kernel(operation: str, reason: str | None) -> bool:
    """Returns whether the kernel of `operation` runs: it does without a `reason`. Logs each choice once."""
    if torch.compiler.is_compiling():
        return reason is None
    if (operation, reason or "") not in _logged:
        _logged.add((operation, reason or ""))
        if reason is None:
            log.info("%s: runs the Triton kernel.", operation)
        else:
            log.info("%s: runs the reference, because %s.", operation, reason)
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
