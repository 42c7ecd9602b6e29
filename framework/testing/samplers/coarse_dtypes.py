"""Floats of fewer than 32 bits, whose rounding biases a sampler: bfloat16, float16 and float8."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from draftwood.testing.diagnosis.intervals import CannotEnumerate


def is_coarse(dtype: torch.dtype) -> bool:
    """Returns whether numbers of this dtype are floats of fewer than 32 bits."""
    return dtype.is_floating_point and dtype.itemsize < 4


def coarse_name(one: Any) -> str:
    """Returns the name of the coarse dtype of a tensor or of a number of numpy; empty if it has none."""
    dtype = getattr(one, "dtype", None)
    coarse = is_coarse(dtype) if isinstance(dtype, torch.dtype) else dtype == np.float16
    return str(dtype).removeprefix("torch.") if coarse else ""


def in_full(other: Any) -> Any:
    """Returns a number or an array, unless random numbers that meet it may be rounded."""
    if coarse := coarse_name(other):
        raise CannotEnumerate(
            f"A random number of Python meets numbers of {coarse}, to which it may be rounded; compute in "
            "float32, or give samples=."
        )
    return other


@functools.cache
def rounding(dtype: torch.dtype) -> Callable[[Any], np.float32]:
    """Returns the function that rounds a number to this coarse dtype, as torch does."""

    def rounded(x: Any) -> np.float32:
        return np.float32(torch.tensor(float(x), dtype=torch.float64).to(dtype).item())

    return rounded
