"""Tells errors of a sampler from errors of the machine and of random numbers that are not drawn yet."""

from __future__ import annotations

import re
import sys
from traceback import walk_tb

import torch

from draftwood.base.errors import DraftwoodError, InvalidDistribution, InvalidInput
from draftwood.base.machine_faults import machine_fault

_OF_FOREIGN_CODE = (TypeError, ValueError, AttributeError, RuntimeError, AssertionError)
"""Errors of code that is given a random number which is not drawn yet."""

_OURS = (
    "coarse_dtypes.py",
    "followed_functions.py",
    "lazy_arrays.py",
    "lazy_dtypes.py",
    "lazy_numbers.py",
    "lazy_orders.py",
    "lazy_tensors.py",
    "number_functions.py",
    "ordered_tensors.py",
    "torch_randomness.py",
    "other_randomness.py",
)

_DEVICE = re.compile(r"cuda|nvidia|rocm|\bxpu\b|\bmps\b|active drivers", re.IGNORECASE)


class RefusedWeights(InvalidDistribution, RuntimeError):
    """Probabilities that torch refuses, told as the error of torch."""


def raise_where_it_is_no_fault(error: Exception) -> None:
    """Raise where the machine is the reason of an error: it lacks a package, a device or memory."""
    if isinstance(error, ImportError) or machine_fault(error) is not None:
        raise error
    if not torch.cuda.is_available() and _DEVICE.search(str(error)):
        raise InvalidInput(
            f"The sampler asks for a device that this machine does not have ({type(error).__name__}: "
            f"{error}); run the proof where the device is."
        ) from error


def comes_of_enumeration(error: Exception) -> bool:
    """Returns whether an error is about numbers that are not drawn yet, rather than of the sampler."""
    if isinstance(error, InvalidDistribution):
        return False  # torch refuses such weights too
    if _of_a_package(error):  # numba raises again what it raised once, so that trials would tell nothing
        return True
    files = {frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)}
    ours = any(file.endswith(_OURS) for file in files)
    return ours or "Lazy" in str(error)


def may_come_of_enumeration(error: Exception | None) -> bool:
    """Returns whether an error may be about numbers that are not drawn yet."""
    # torch too refuses weights with nan.
    return isinstance(error, _OF_FOREIGN_CODE) and not isinstance(error, InvalidDistribution)


def _of_a_package(error: Exception) -> bool:
    """Returns whether an installed package defines the error's class, as numba does."""
    module = sys.modules.get(type(error).__module__)
    ours = isinstance(error, DraftwoodError)
    return "site-packages" in (getattr(module, "__file__", None) or "") and not ours
