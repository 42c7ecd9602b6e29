"""Random numbers in tensors whose dtype changes them: floats of fewer than 32 bits, and integers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood.testing.diagnosis.intervals import CannotEnumerate
from draftwood.testing.samplers.coarse_dtypes import is_coarse, rounding
from draftwood.testing.samplers.lazy_numbers import LazyNumber
from draftwood.testing.samplers.lazy_orders import Numbers


def held_as(numbers: Numbers, dtype: torch.dtype) -> Numbers:
    """Returns the entries as a tensor of this dtype holds them.

    They are rounded in floats of fewer than 32 bits and truncated in integers. Rounding to float32 counts as
    a rounding error of the sampler, and is not made.
    """
    if dtype.is_complex:
        raise CannotEnumerate("Random numbers are written into complex numbers; give samples=.")
    if dtype is torch.bool:
        convert: Callable[[Any], Any] = bool
    elif not dtype.is_floating_point:
        convert = _truncating(dtype)
    elif is_coarse(dtype):
        convert = _rounding(dtype)
    elif dtype is torch.float64:
        convert = _in_float64
    else:
        return numbers
    with np.errstate(invalid="ignore"):
        return np.vectorize(convert, otypes=[object])(numbers) if numbers.size else numbers


def common_dtype(args: Sequence[Any], *, divided: bool = False) -> torch.dtype:
    """Returns the dtype in which torch computes with one or two tensors and numbers.

    Args:
        args: the tensors and numbers.
        divided: whether they are divided, which gives floats for integers too.
    """
    given = [0.0 if isinstance(one, LazyNumber) else one for one in args]
    dtype = torch.result_type(given[0], given[1] if len(given) > 1 else given[0])
    if dtype.is_floating_point and dtype.itemsize == 1:
        raise CannotEnumerate(
            f"Random numbers are compared in {dtype}, in which torch does not compute; give samples=."
        )
    if divided and not dtype.is_floating_point and not dtype.is_complex:
        return torch.get_default_dtype()
    return dtype


def computed(function: Callable[..., Any], args: Sequence[Any], found: Numbers) -> Numbers:
    """Returns the entries of `function(*args)` with values that torch itself computes.

    torch rounds each result to a coarse dtype, and numpy knows neither bfloat16 nor float8.

    Args:
        function: of torch, which treats each entry by itself and gives a coarse dtype.
        args: tensors and numbers.
        found: the same entries without rounding, which say whether each rises or falls.
    """
    made = np.empty(found.shape, object)
    parts = [np.broadcast_to(_entries(one), found.shape) for one in args]
    for place in np.ndindex(found.shape):
        made[place] = _computed(function, args, [part[place] for part in parts], found[place])
    return made


def _computed(function: Callable[..., Any], args: Sequence[Any], parts: list[Any], found: Any) -> Any:
    def at(point: int) -> np.float32:
        given: list[Any] = []
        for one, part in zip(args, parts, strict=True):
            x = part.value(point) if isinstance(part, LazyNumber) else part
            if isinstance(one, Tensor):
                # A tensor without dimensions takes part in a common dtype otherwise than one that has some.
                given.append(torch.full((1,) * min(one.ndim, 1), float(x), dtype=torch.float64).to(one.dtype))
            else:
                given.append(float(x) if isinstance(one, LazyNumber) else x)
        return np.float32(function(*given).item())

    if not isinstance(found, LazyNumber):
        return at(0)
    return _with_numbers_at_its_ends(attrs.evolve(found, value=at, form=None, rate=1.0))


def _entries(one: Any) -> Numbers:
    numbers: Any = getattr(one, "numbers", None)
    if numbers is None and isinstance(one, Tensor):
        numbers = one.detach().cpu().double().numpy()
    held: Numbers = np.empty(np.shape(numbers) if isinstance(one, Tensor) else (), object)
    held[...] = numbers if isinstance(one, Tensor) else one
    return held


def _with_numbers_at_its_ends(number: LazyNumber) -> LazyNumber:
    if any(math.isnan(end) for end in number.ends()):
        raise CannotEnumerate(
            "A random number becomes nan in a dtype of fewer than 32 bits; compute in float32, or give "
            "samples=."
        )
    return number


def _in_float64(x: Any) -> Any:
    # A float32 of numpy would be compared with a number of Python in float32.
    return x.applied(np.float64, 1, x.form, x.rate) if isinstance(x, LazyNumber) else np.float64(x)


def _rounding(dtype: torch.dtype) -> Callable[[Any], Any]:
    rounded = rounding(dtype)

    def of(x: Any) -> Any:
        return _with_numbers_at_its_ends(x.applied(rounded, 1)) if isinstance(x, LazyNumber) else rounded(x)

    return of


def _truncating(dtype: torch.dtype) -> Callable[[Any], Any]:
    limits = torch.iinfo(dtype)

    def of(x: Any) -> Any:
        ends = x.ends() if isinstance(x, LazyNumber) else (x,)
        if not all(limits.min <= np.trunc(end) <= limits.max for end in ends):
            name = str(dtype).removeprefix("torch.")
            raise CannotEnumerate(
                f"A random number is written into {name}, which may overflow; give samples=."
            )
        return x.applied(np.trunc, 1) if isinstance(x, LazyNumber) else np.trunc(x)

    return of
