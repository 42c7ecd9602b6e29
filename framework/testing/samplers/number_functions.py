"""Functions of drawn numbers that give an infinity without a warning as torch does, and their operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import torch

_Operator = TypeVar("_Operator", bound=Callable[[Any, Any], Any])


def divided(x: Any, c: Any) -> Any:
    """Returns x / c, infinite or nan where c is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.float64(x) / np.float64(c) if not isinstance(x, np.floating) else x / c


def log(x: Any) -> Any:
    """Returns the natural logarithm, -inf of 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(x)


def ndtri(u: Any) -> Any:
    """Returns the quantile of the standard normal distribution."""
    return np.float64(torch.special.ndtri(torch.tensor(float(u), dtype=torch.float64)))


def with_one(operator: _Operator) -> _Operator:
    """Returns `operator`, which leaves arrays and tensors of several numbers to their own operators."""

    def combined(one: Any, other: Any) -> Any:
        several = isinstance(other, (torch.Tensor, np.ndarray)) and other.ndim
        return NotImplemented if several else operator(one, other)

    return cast(_Operator, combined)
