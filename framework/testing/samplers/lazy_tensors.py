"""Tensors and arrays of random numbers that are not drawn before they are compared."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.testing.diagnosis.intervals import CannotEnumerate
from draftwood.testing.samplers.followed_functions import ASKED, BINARY, COMPARED, KEPT, RESHAPED, UNARY
from draftwood.testing.samplers.lazy_arrays import LazyArray
from draftwood.testing.samplers.lazy_numbers import LazyNumber, searched
from draftwood.testing.samplers.lazy_orders import Numbers, places_in_order, places_won

_RETURNED: Any = torch.return_types


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
    """Returns `tensor` itself, which holds these entries from now on, as the tensor does that it views."""
    numbers = np.broadcast_to(numbers, tuple(tensor.shape))
    if not isinstance(tensor, LazyTensor):
        viewed = _viewed(tensor)
        _WRITTEN.append((tensor, type(tensor)))
        tensor.__class__ = LazyTensor
        tensor._viewed = viewed  # type: ignore[attr-defined]
    tensor.numbers = numbers  # type: ignore[attr-defined]
    return tensor


def _viewed(tensor: Tensor) -> tuple[LazyTensor, Numbers] | None:
    """Returns the tensor that a tensor is a view of, as one of numbers, and the view's places in it."""
    whole, shape, stride, offset = tensor._base, tensor.shape, tensor.stride(), tensor.storage_offset()
    if whole is None:
        return None
    with torch._C.DisableTorchFunctionSubclass():
        if not whole.is_contiguous() or whole.storage_offset():
            raise CannotEnumerate("Random numbers are written into a part of a tensor; give samples=.")
        places = torch.arange(whole.numel()).as_strided(shape, stride, offset).numpy()
    lazy: Any = whole if isinstance(whole, LazyTensor) else written(whole, entries(whole))
    return lazy, places


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
        return _combined(bare.removeprefix("r") if reflected else bare, args, options, reflected, in_place)
    if bare in COMPARED:
        left, right = (entries(one) for one in args[:2])
        with np.errstate(divide="ignore", invalid="ignore"):  # a test of log(0) is no fault of the sampler
            found = COMPARED[bare](left, right)
        return torch.tensor(np.asarray(found, dtype=bool), device=_lazy(args).device)
    if bare in UNARY:
        return _like(UNARY[bare](entries(args[0])), args[0], in_place)
    if name in KEPT:
        return func(*args, **options)
    if name in RESHAPED:
        return _reshaped(func, args, options)
    if name in _SPECIAL:
        return _SPECIAL[name](*args, **options)
    raise CannotEnumerate(
        f"Random numbers of torch are given to {name}, where they cannot be enumerated: take uniforms as an "
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
    name: str, args: tuple[Any, ...], options: dict[str, Any], reflected: bool, in_place: bool
) -> Tensor:
    if options.pop("alpha", 1) != 1 or options.pop("rounding_mode", None) is not None:
        raise CannotEnumerate(f"Random numbers are combined by {name} with options; give samples=.")
    out = options.pop("out", None)
    left, right = (entries(one) for one in args[:2])
    found = BINARY[name](right, left) if reflected else BINARY[name](left, right)
    if out is not None:
        return written(out, found)
    return _like(found, args[0], in_place)


def _like(numbers: Any, one: Any, in_place: bool) -> Tensor:
    numbers = _array(numbers)
    if in_place:
        return written(one, numbers)
    of = one if isinstance(one, Tensor) else None
    dtype = of.dtype if of is not None and of.is_floating_point() else torch.get_default_dtype()
    return LazyTensor.of(numbers, dtype=dtype, device="cpu" if of is None else of.device)


def _array(numbers: Any) -> Numbers:
    if isinstance(numbers, np.ndarray):
        return numbers if numbers.dtype == object else numbers.astype(object)
    held = np.empty((), object)
    held[()] = numbers
    return held


def entries(one: Any) -> Any:
    """The entries of a tensor as an array, each in its own precision; other values as they are."""
    if isinstance(one, LazyTensor):
        return one.numbers
    if not isinstance(one, Tensor):
        return one
    exact = one.double() if one.dtype is torch.bfloat16 else one
    plain = exact.detach().cpu().numpy()
    held = np.empty(plain.shape, object)
    for place in np.ndindex(plain.shape):
        held[place] = plain[place]
    return held


def _lazy(args: Any) -> LazyTensor:
    return next(one for one in args if isinstance(one, LazyTensor))


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


def _raced(largest: bool) -> Callable[..., Tensor]:
    def raced(one: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
        found = torch.as_tensor(places_won(entries(one), dim, largest=largest), device=one.device)
        return found.unsqueeze(dim) if keepdim and dim is not None else found

    return raced


def _extreme(largest: bool) -> Callable[..., Any]:
    kind = _RETURNED.max if largest else _RETURNED.min

    def extreme(one: LazyTensor, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None or isinstance(dim, Tensor):
            raise CannotEnumerate("The largest or smallest of random numbers is asked for; give samples=.")
        values, places = _first(one, 1, dim, largest)
        return kind((values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim)))

    return extreme


def _first(one: LazyTensor, count: int, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Returns the `count` first along a dimension, and their places."""
    places = torch.as_tensor(places_in_order(one.numbers, dim, count, largest=largest), device=one.device)
    return one.gather(dim, places), places


def _topk(one: LazyTensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return _RETURNED.topk(_first(one, k, dim, largest))


def _sort(one: LazyTensor, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    return _RETURNED.sort(_first(one, one.shape[dim], dim, descending))


def _argsort(one: LazyTensor, dim: int = -1, descending: bool = False, **_: Any) -> Tensor:
    return _first(one, one.shape[dim], dim, descending)[1]


def _joined(join: Callable[..., Any]) -> Callable[..., Tensor]:
    def joined(parts: Any, dim: int = 0) -> Tensor:
        return _like(join([_array(entries(one)) for one in parts], dim), _lazy(parts), False)

    return joined


def _to(one: LazyTensor, *args: Any, **options: Any) -> Tensor:
    kept = torch.zeros((), dtype=one.dtype, device=one.device).to(*args, **options)
    if (kept.dtype, kept.device) == (one.dtype, one.device) and not options.get("copy"):
        return one
    if kept.is_floating_point():
        return LazyTensor.of(one.numbers, dtype=kept.dtype, device=kept.device)
    whole = np.vectorize(int, otypes=[np.int64])(one.numbers)
    return torch.as_tensor(whole, device=kept.device).to(kept.dtype)


def _cast(dtype: torch.dtype) -> Callable[[LazyTensor], Tensor]:
    return lambda one: _to(one, dtype)


def _clamp(one: LazyTensor, min: Any = None, max: Any = None) -> Tensor:
    clamp = np.vectorize(
        lambda x: x.clamped(min, max) if isinstance(x, LazyNumber) else np.clip(x, min, max), otypes=[object]
    )
    return _like(clamp(one.numbers), one, False)


def _where(condition: Tensor, left: Any, right: Any) -> Tensor:
    found = np.where(condition.cpu().numpy(), _array(entries(left)), _array(entries(right)))
    return _like(found, left if isinstance(left, Tensor) else right, False)


def _masked_fill(one: Tensor, mask: Tensor, value: Any) -> Tensor:
    return _where(mask, value, one)


def _set_item(one: Tensor, key: Any, value: Any) -> None:
    numbers = np.array(_array(entries(one)))
    places = torch.arange(one.numel(), device=one.device).reshape(one.shape)[key].cpu().numpy()
    numbers.reshape(-1)[places] = _array(entries(value))
    written(one, numbers)


def _item(one: LazyTensor) -> Any:
    return one.numbers.item()


def _searched(heights: Tensor, one: Any, *, right: bool = False, side: str | None = None, **_: Any) -> Tensor:
    if not isinstance(one, LazyTensor):
        raise CannotEnumerate("Numbers are searched in random heights; give samples=.")
    side = side or ("right" if right else "left")
    return torch.as_tensor(searched(heights.detach().cpu(), one.numbers, side), device=one.device)


_SPECIAL: dict[str, Callable[..., Any]] = {
    "argmax": _raced(True),
    "argmin": _raced(False),
    "max": _extreme(True),
    "min": _extreme(False),
    "topk": _topk,
    "sort": _sort,
    "argsort": _argsort,
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
    "clamp_": lambda one, min=None, max=None: written(one, _clamp(one, min, max).numbers),  # type: ignore[attr-defined]
    "where": _where,
    "masked_fill": _masked_fill,
    "masked_fill_": lambda one, mask, value: written(one, entries(_masked_fill(one, mask, value))),
    "copy_": lambda one, other, non_blocking=False: written(one, _array(entries(other))),
    "__setitem__": _set_item,
    "item": _item,
    "tolist": lambda one: one.numbers.tolist(),
    "numpy": lambda one: one.numbers.view(LazyArray),
    "searchsorted": _searched,
    "bucketize": lambda one, boundaries, right=False, **_: _searched(boundaries, one, right=right),
    "floor": lambda one: torch.as_tensor(np.vectorize(np.floor, otypes=[float])(one.numbers)).to(one.dtype),
    "round": lambda one, *, decimals=0: _like(
        np.vectorize(lambda x: round(x, decimals), otypes=[object])(one.numbers), one, False
    ),
    "__bool__": lambda one: bool(one.numbers.item()),
    "__float__": lambda one: float(one.numbers.item()),
    "__int__": lambda one: int(one.numbers.item()),
}
