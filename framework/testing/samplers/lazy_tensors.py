"""Tensors and arrays of random numbers that are not drawn before they are compared."""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.testing.diagnosis.intervals import CannotEnumerate
from draftwood.testing.samplers.coarse_dtypes import coarse_name, is_coarse
from draftwood.testing.samplers.followed_functions import ASKED, BINARY, COMPARED, KEPT, RESHAPED, UNARY
from draftwood.testing.samplers.lazy_arrays import LazyArray
from draftwood.testing.samplers.lazy_dtypes import common_dtype, computed, held_as
from draftwood.testing.samplers.lazy_numbers import LazyNumber, searched
from draftwood.testing.samplers.lazy_orders import Numbers
from draftwood.testing.samplers.ordered_tensors import argsort, extreme, raced, sort, topk


class LazyTensor(Tensor):
    """A tensor whose entries are `LazyNumber` or numbers; what it holds itself is never read.

    A view has the entries of the tensor that it is a view of, at its own places among them.
    """

    _held: Numbers
    _viewed: tuple[LazyTensor, Numbers] | None = None

    @staticmethod
    def of(numbers: Numbers, *, dtype: torch.dtype, device: Any = "cpu") -> LazyTensor:
        """Returns the tensor of these entries."""
        made = torch.zeros(numbers.shape, dtype=dtype, device=device).as_subclass(LazyTensor)
        made._held = numbers
        return made

    @property
    def numbers(self) -> Numbers:
        """Returns the entries, an array of this tensor's shape."""
        if self._viewed is None:
            return self._held
        whole, places = self._viewed
        numbers = np.empty(places.shape, object)  # one place too, which numpy would give as its number
        numbers[...] = whole.numbers.reshape(-1)[places]
        return numbers

    @numbers.setter
    def numbers(self, numbers: Numbers) -> None:
        if self._viewed is None:
            self._held = numbers
        else:
            whole, places = self._viewed
            changed = whole.numbers.copy()
            changed.reshape(-1)[places] = numbers
            whole.numbers = changed

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return _answer(func, args, dict(kwargs or {}))


_WRITTEN: list[tuple[Tensor, type]] = []
"""Tensors that were made `LazyTensor` because random numbers were written into them, and their classes."""


@contextlib.contextmanager
def written_for_a_while() -> Iterator[None]:
    """Gives tensors that random numbers are written into within it their classes back.

    A sampler may keep a buffer for its noise and use it in the next call too.
    """
    begin = len(_WRITTEN)
    try:
        yield
    finally:
        for tensor, kind in reversed(_WRITTEN[begin:]):
            tensor.__class__ = kind
        del _WRITTEN[begin:]


def written(tensor: Tensor, numbers: Numbers) -> Tensor:
    """Returns `tensor` itself, which holds these entries from now on, as the tensor does that it views.

    It holds them in its own dtype: rounded or truncated where that does so.
    """
    held = held_as(np.broadcast_to(_array(numbers), tuple(tensor.shape)), tensor.dtype)
    known = not any(isinstance(one, LazyNumber) for one in held.flat)
    if known and not isinstance(tensor, LazyTensor) and not isinstance(tensor._base, LazyTensor):
        with torch._C.DisableTorchFunctionSubclass():
            return tensor.copy_(torch.tensor(held.tolist(), dtype=torch.float64))
    _made_lazy(tensor).numbers = held
    return tensor


def _made_lazy(tensor: Tensor) -> LazyTensor:
    lazy: Any = tensor
    if not isinstance(tensor, LazyTensor):
        numbers, viewed = entries(tensor), _viewed(tensor)
        _WRITTEN.append((tensor, type(tensor)))
        tensor.__class__ = LazyTensor
        lazy._viewed = viewed
        if viewed is None:
            lazy.numbers = numbers
    return lazy  # type: ignore[no-any-return]


def _viewed(tensor: Tensor) -> tuple[LazyTensor, Numbers] | None:
    """Returns the tensor that a tensor is a view of, as one of numbers, and the view's places in it."""
    whole, shape, stride, offset = tensor._base, tensor.shape, tensor.stride(), tensor.storage_offset()
    if whole is None:
        return None
    with torch._C.DisableTorchFunctionSubclass():
        if not whole.is_contiguous() or whole.storage_offset():
            raise CannotEnumerate("Random numbers are written into a part of a tensor; give samples=.")
        places = torch.arange(whole.numel()).as_strided(shape, stride, offset).numpy()
    return _made_lazy(whole), places


def _answer(func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    name = getattr(func, "__name__", str(func))
    if name == "__get__" or name == "__set__":
        return _asked(func, args)
    bare = name.strip("_")
    reflected = bare not in BINARY and bare.startswith("r") and bare[1:] in BINARY
    in_place = name.endswith("_") and not name.endswith("__")
    if name.startswith("__i") and bare[1:] in BINARY:
        in_place, bare = True, bare[1:]
    if bare in BINARY or reflected:
        kind = bare.removeprefix("r") if reflected else bare
        return _combined(func, kind, args, options, reflected, in_place)
    if bare in COMPARED:
        return _compared(bare, args, options, in_place)
    if bare in UNARY:
        return _applied(func, UNARY[bare], args, options, in_place)
    if name in KEPT:
        return func(*args, **options)
    if name in RESHAPED:
        return _reshaped(func, args, options)
    if name in _SPECIAL:
        return _SPECIAL[name](*args, **options)
    told = {"__reduce_ex__": "pickle", "__repr__": "print"}.get(name, name.strip("_"))
    raise CannotEnumerate(
        f"Random numbers of torch are given to {told}, where they cannot be enumerated: take uniforms as an "
        "argument, or give samples=."
    )


def _asked(func: Any, args: tuple[Any, ...]) -> Any:
    name = getattr(getattr(func, "__self__", None), "__name__", "")
    if name in ("T", "mT"):
        return _reshaped(lambda one: getattr(one, name), args, {})
    if name not in ASKED:
        raise CannotEnumerate(f"Random numbers of torch are asked for their {name}; give samples=.")
    return func(*args)


def _combined(
    func: Any, name: str, args: tuple[Any, ...], options: dict[str, Any], reflected: bool, in_place: bool
) -> Tensor:
    if options.pop("alpha", 1) != 1 or options.pop("rounding_mode", None) is not None:
        raise CannotEnumerate(f"Random numbers are combined by {name} with options; give samples=.")
    left, right = (entries(one) for one in args[:2])
    found = _array(BINARY[name](right, left) if reflected else BINARY[name](left, right))
    dtype = common_dtype(args[:2], divided="div" in name)
    return _given(func, args[:2], found, dtype, options, in_place)


def _applied(
    func: Any, function: Callable[[Any], Any], args: Any, options: dict[str, Any], in_place: bool
) -> Tensor:
    of_integers = not args[0].is_floating_point() and function is not operator.neg
    dtype = torch.get_default_dtype() if of_integers else args[0].dtype
    return _given(func, args[:1], _array(function(entries(args[0]))), dtype, options, in_place)


def _given(
    func: Any, args: Any, found: Numbers, dtype: torch.dtype, options: dict[str, Any], in_place: bool = False
) -> Tensor:
    """Returns the result of a function of each entry in its dtype, in the tensor where torch puts it."""
    out = args[0] if in_place else options.pop("out", None)
    if options:
        raise CannotEnumerate(f"Random numbers are computed with {', '.join(options)}; give samples=.")
    if out is not None and not torch.can_cast(dtype, out.dtype):
        raise CannotEnumerate(f"Random numbers of {dtype} are written into {out.dtype}; give samples=.")
    if is_coarse(dtype) or (in_place and is_coarse(out.dtype)):
        found = computed(func, args, found)
    if out is not None:
        return written(out, found)
    one = _lazy(args)
    if one.dtype is dtype is torch.float64:  # nothing changes, and most samplers compute so
        return LazyTensor.of(found, dtype=dtype, device=one.device)
    return _like(found, one, dtype)


def _compared(name: str, args: tuple[Any, ...], options: dict[str, Any], in_place: bool) -> Tensor:
    dtype = common_dtype(args[:2])
    left, right = (entries(one) for one in args[:2])
    if is_coarse(dtype):
        left, right = (held_as(_array(one), dtype) for one in (left, right))
    with np.errstate(divide="ignore", invalid="ignore"):  # a test of log(0) is no fault of the sampler
        found = torch.tensor(np.asarray(COMPARED[name](left, right), dtype=bool), device=_lazy(args).device)
    out = args[0] if in_place else options.get("out")
    return found if out is None else written(out, found.double().numpy())


def _like(numbers: Any, one: Tensor, dtype: torch.dtype) -> LazyTensor:
    return LazyTensor.of(held_as(_array(numbers), dtype), dtype=dtype, device=one.device)


def _array(numbers: Any) -> Numbers:
    if isinstance(numbers, np.ndarray):
        return numbers if numbers.dtype == object else numbers.astype(object)
    held = np.empty((), object)
    held[()] = numbers
    return held


def entries(one: Any) -> Any:
    """The entries of a tensor as an array, in its precision or in float32; other values as they are."""
    if isinstance(one, LazyTensor):
        return one.numbers
    if not isinstance(one, Tensor):
        return one
    exact = one.float() if is_coarse(one.dtype) else one
    plain = exact.detach().cpu().numpy()
    held = np.empty(plain.shape, object)
    for place in np.ndindex(plain.shape):
        held[place] = plain[place]
    return held


def _lazy(args: Any) -> Any:
    """Returns the first tensor of random numbers; the first tensor where a number of Python is random."""
    tensors = [one for one in args if isinstance(one, Tensor)]
    return next((one for one in tensors if isinstance(one, LazyTensor)), tensors[0])


def _reshaped(func: Any, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
    one = args[0]
    if not isinstance(one, LazyTensor):
        raise CannotEnumerate("Random numbers of torch are used as an index; give samples=.")
    flat = one.numbers.reshape(-1)
    places = torch.arange(len(flat), device=one.device).reshape(one.shape)

    def taken(found: Any) -> Any:
        if isinstance(found, Tensor):
            numbers = np.empty(tuple(found.shape), object)
            numbers[...] = flat[found.cpu().numpy()]
            made = LazyTensor.of(numbers, dtype=one.dtype, device=one.device)
            if found.untyped_storage().data_ptr() == places.untyped_storage().data_ptr():
                made._viewed = one, found.cpu().numpy()
            return made
        return type(found)(taken(part) for part in found)

    found = func(places, *args[1:], **options)
    return iter([taken(part) for part in found]) if isinstance(found, Iterator) else taken(found)


def _joined(join: Callable[..., Any]) -> Callable[..., Tensor]:
    def joined(parts: Any, dim: int = 0) -> Tensor:
        dtype = functools.reduce(torch.promote_types, [one.dtype for one in parts])
        return _like(join([_array(entries(one)) for one in parts], dim), _lazy(parts), dtype)

    return joined


def _to(one: LazyTensor, *args: Any, **options: Any) -> Tensor:
    kept = torch.zeros((), dtype=one.dtype, device=one.device).to(*args, **options)
    if (kept.dtype, kept.device) == (one.dtype, one.device) and not options.get("copy"):
        return one
    if kept.is_floating_point():
        return LazyTensor.of(held_as(one.numbers, kept.dtype), dtype=kept.dtype, device=kept.device)
    whole = np.vectorize(bool if kept.dtype is torch.bool else int, otypes=[np.int64])(one.numbers)
    return torch.as_tensor(whole, device=kept.device).to(kept.dtype)


def _cast(dtype: torch.dtype) -> Callable[[LazyTensor], Tensor]:
    return lambda one: _to(one, dtype)


def _clamp(one: Tensor, min: Any = None, max: Any = None, *, in_place: bool = False) -> Tensor:
    def clamp(x: Any, low: Any, high: Any) -> Any:
        return x.clamped(low, high) if isinstance(x, LazyNumber) else np.clip(x, low, high)

    bounds = [bound for bound in (min, max) if bound is not None]
    with np.errstate(invalid="ignore"):
        found = np.vectorize(clamp, otypes=[object])(*(_array(entries(x)) for x in (one, min, max)))
    dtypes = [one.dtype, *(common_dtype([one, bound]) for bound in bounds)]
    dtype = functools.reduce(torch.promote_types, dtypes)

    def of_torch(*given: Any) -> Tensor:
        left = iter(given[1:])
        low, high = (None if bound is None else next(left) for bound in (min, max))
        clamped: Tensor = given[0].clamp(low, high)
        return clamped

    return _given(of_torch, [one, *bounds], found, dtype, {}, in_place)


def _where(condition: Tensor, left: Any, right: Any) -> Tensor:
    found = np.where(condition.cpu().numpy(), _array(entries(left)), _array(entries(right)))
    return _like(found, condition, common_dtype([left, right]))


def _masked_fill(one: Tensor, mask: Tensor, value: Any) -> Tensor:
    found = np.where(mask.cpu().numpy(), _array(entries(value)), _array(entries(one)))
    return _like(found, one, one.dtype)


def _set_item(one: Tensor, key: Any, value: Any) -> None:
    numbers = np.array(_array(entries(one)))
    places = torch.arange(one.numel(), device=one.device).reshape(one.shape)[key].cpu().numpy()
    # One place too is a row of places: numpy would put the array itself into it.
    given = np.broadcast_to(_array(entries(value)), places.shape).reshape(-1)
    numbers.reshape(-1)[places.reshape(-1)] = given
    written(one, numbers)


def _round(one: LazyTensor, *, decimals: int = 0) -> Tensor:
    found = np.vectorize(lambda x: round(x, decimals), otypes=[object])(one.numbers)
    return _given(lambda x: x.round(decimals=decimals), [one], found, one.dtype, {})


def _numpy(one: LazyTensor) -> Any:
    if coarse := coarse_name(one):
        raise CannotEnumerate(f"Random numbers of {coarse} are given to numpy; give samples=.")
    return one.numbers.view(LazyArray)


def _item(one: LazyTensor) -> Any:
    return one.numbers.item()


def _searched(heights: Tensor, one: Any, *, right: bool = False, side: str | None = None, **_: Any) -> Tensor:
    if isinstance(one, LazyNumber) and not isinstance(heights, LazyTensor):
        return torch.as_tensor(searched(heights.cpu(), one, side or ("right" if right else "left")))
    if not isinstance(one, LazyTensor):
        raise CannotEnumerate("Numbers are searched in random heights; give samples=.")
    if coarse_name(heights) and heights.dtype is not one.dtype:
        raise CannotEnumerate(f"Random numbers are searched in heights of {heights.dtype}; give samples=.")
    heights = heights.double() if coarse_name(heights) else heights
    side = side or ("right" if right else "left")
    return torch.as_tensor(searched(heights.detach().cpu(), one.numbers, side), device=one.device)


_SPECIAL: dict[str, Callable[..., Any]] = {
    "argmax": raced(True),
    "argmin": raced(False),
    "max": extreme(True),
    "min": extreme(False),
    "topk": topk,
    "sort": sort,
    "argsort": argsort,
    "cat": _joined(np.concatenate),
    "concat": _joined(np.concatenate),
    "stack": _joined(np.stack),
    "to": _to,
    "double": _cast(torch.float64),
    "float": _cast(torch.float32),
    "half": _cast(torch.float16),
    "bfloat16": _cast(torch.bfloat16),
    "long": _cast(torch.int64),
    "int": _cast(torch.int32),
    "type_as": lambda one, other: _to(one, other.dtype),
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": lambda one, low: _clamp(one, low),
    "clamp_": functools.partial(_clamp, in_place=True),
    "where": _where,
    "masked_fill": _masked_fill,
    "masked_fill_": lambda one, mask, value: written(one, entries(_masked_fill(one, mask, value))),
    "copy_": lambda one, other, non_blocking=False: written(one, _array(entries(other))),
    "__setitem__": _set_item,
    "item": _item,
    "tolist": lambda one: one.numbers.tolist(),
    "numpy": _numpy,
    "searchsorted": _searched,
    "bucketize": lambda one, boundaries, right=False, **_: _searched(boundaries, one, right=right),
    "floor": lambda one: torch.as_tensor(np.vectorize(np.floor, otypes=[float])(one.numbers)).to(one.dtype),
    "round": _round,
    "__bool__": lambda one: bool(one.numbers.item()),
    "__float__": lambda one: float(one.numbers.item()),
    "__int__": lambda one: int(one.numbers.item()),
}


LazyNumber.in_torch = LazyTensor.__torch_function__
