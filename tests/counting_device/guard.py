"""A device guard for CUDA, which does nothing, in builds of torch without CUDA.

Whatever names a CUDA device asks c10's table for the guard of CUDA. Builds with CUDA have one there. Where it
says that there are no devices, `torch._C._ensureCUDADeviceGuardSet` exchanges it for one that does nothing.
Builds without CUDA have none, and so that function leaves the place empty. An object that is put there for
the question, and says 0, gets it to put its own guard there.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
"""c10::impl::device_guard_impl_registry: a pointer for every device type."""

CPU, CUDA = 0, 1
"""Their numbers among c10's device types."""

METHODS = 64
"""More than a guard has."""


@contextmanager
def cuda_guard() -> Iterator[None]:
    """Inside it there is a guard for CUDA; afterwards the table is as it was.

    Raises:
        RuntimeError: this build of torch has another table.
    """
    registry = _registry()
    before = registry[CUDA]
    if before is None:
        registry[CUDA] = _of_no_device()
    try:
        torch._C._ensureCUDADeviceGuardSet()
        if before is None and registry[CUDA] == _of_no_device():
            raise RuntimeError(
                f"torch {torch.__version__} sets no CUDA guard; the counting device needs another way to it."
            )
        yield
    finally:
        registry[CUDA] = before


def guard_address() -> int | None:
    """Where the guard for CUDA is; None where there is none."""
    address: Any = _registry()[CUDA]
    return None if address is None else int(address)


def _registry() -> ctypes.Array[ctypes.c_void_p]:
    found = sorted((Path(torch.__file__).parent / "lib").glob("libc10.*"))
    try:
        registry = (ctypes.c_void_p * (CUDA + 1)).in_dll(ctypes.CDLL(str(found[0])), REGISTRY)
    except (IndexError, OSError, ValueError) as error:
        raise RuntimeError(
            f"The table of device guards was not found in torch {torch.__version__}; the counting device "
            "needs a build for Linux or macOS."
        ) from error
    if registry[CPU] is None:
        raise RuntimeError(
            f"The table of device guards of torch {torch.__version__} is not as expected; see guard.py."
        )
    return registry


@ctypes.CFUNCTYPE(ctypes.c_int8, ctypes.c_void_p)
def _none(_: int) -> int:
    return 0


# An object of C++ begins with the address of a table of its methods. Whatever this one is asked, it says 0.
_methods = (ctypes.c_void_p * METHODS)(*[ctypes.cast(_none, ctypes.c_void_p).value] * METHODS)
_object = ctypes.c_void_p(ctypes.addressof(_methods))


def _of_no_device() -> int:
    """The address of a guard that knows of no device."""
    return ctypes.addressof(_object)
