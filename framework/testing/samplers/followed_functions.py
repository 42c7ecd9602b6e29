"""Functions of torch that may be given random numbers which are not drawn yet, by kind."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.testing.samplers.lazy_numbers import LazyNumber
from draftwood.testing.samplers.lazy_orders import Numbers


def _rising(function: Callable[[Tensor], Tensor]) -> Callable[[Numbers], Numbers]:
    """A rising function of torch, of every entry."""

    def of(x: Any) -> Any:
        return np.float64(function(torch.tensor(float(x), dtype=torch.float64)))

    return np.vectorize(lambda x: x.applied(of, 1) if isinstance(x, LazyNumber) else of(x), otypes=[object])


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "subtract": operator.sub,
    "mul": operator.mul,
    "multiply": operator.mul,
    "div": operator.truediv,
    "divide": operator.truediv,
    "true_divide": operator.truediv,
    "truediv": operator.truediv,
}
"""Functions of two tensors, by name."""

UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": operator.neg,
    "negative": operator.neg,
    "log": np.log,
    "log1p": np.log1p,
    "exp": np.exp,
    "sqrt": np.sqrt,
    "reciprocal": lambda numbers: 1.0 / numbers,
    **{
        f"special_{name}": _rising(getattr(torch.special, name))
        for name in ("ndtr", "ndtri", "expit", "logit")
    },
    "sigmoid": _rising(torch.sigmoid),
    "tanh": _rising(torch.tanh),
}
"""Rising or falling functions of one tensor, by name."""

COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "lt": operator.lt,
    "less": operator.lt,
    "le": operator.le,
    "less_equal": operator.le,
    "gt": operator.gt,
    "greater": operator.gt,
    "ge": operator.ge,
    "greater_equal": operator.ge,
}
"""Comparisons, by name."""

RESHAPED = [
    "__getitem__",
    "clone",
    "contiguous",
    "detach",
    "cpu",
    "expand",
    "expand_as",
    "flatten",
    "permute",
    "reshape",
    "squeeze",
    "transpose",
    "unsqueeze",
    "view",
    "view_as",
    "reshape_as",
    "repeat",
    "t",
    "ravel",
    "narrow",
    "select",
    "unbind",
    "split",
    "chunk",
    "gather",
    "index_select",
    "take",
    "flip",
    "roll",
    "movedim",
    "swapaxes",
    "__iter__",
]
"""Functions that move the entries of a tensor, or repeat them."""

ASKED = ["shape", "device", "dtype", "ndim", "is_cuda", "layout", "requires_grad", "T", "mT"]
"""Attributes that do not depend on the entries, and transposes."""

KEPT = [
    "__len__",
    "dim",
    "numel",
    "size",
    "is_floating_point",
    "stride",
    "is_contiguous",
    "data_ptr",
    "element_size",
]
"""Functions that do not depend on the entries."""
