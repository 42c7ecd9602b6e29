"""Functions of torch that put random numbers in order: races, whose winners are drawn by their weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from draftwood.testing.diagnosis.intervals import CannotEnumerate
from draftwood.testing.samplers.lazy_orders import places_in_order, places_won

_RETURNED: Any = torch.return_types


def raced(largest: bool) -> Callable[..., Tensor]:
    """Returns `torch.argmax` or `torch.argmin` of random numbers."""

    def places(one: Any, dim: int | None = None, keepdim: bool = False) -> Tensor:
        found = torch.as_tensor(places_won(one.numbers, dim, largest=largest), device=one.device)
        return found.unsqueeze(dim) if keepdim and dim is not None else found

    return places


def extreme(largest: bool) -> Callable[..., Any]:
    """Returns `torch.max` or `torch.min` of random numbers along a dimension."""
    kind = _RETURNED.max if largest else _RETURNED.min

    def of(one: Any, dim: Any = None, keepdim: bool = False) -> Any:
        if dim is None or isinstance(dim, Tensor):
            raise CannotEnumerate("The largest or smallest of random numbers is asked for; give samples=.")
        values, places = _first(one, 1, dim, largest)
        return kind((values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim)))

    return of


def _first(one: Any, count: int, dim: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Returns the `count` first along a dimension, and their places."""
    places = torch.as_tensor(places_in_order(one.numbers, dim, count, largest=largest), device=one.device)
    return one.gather(dim, places), places


def topk(one: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """Returns the `k` largest or smallest along a dimension, as `torch.topk` does."""
    return _RETURNED.topk(_first(one, k, dim, largest))


def sort(one: Any, dim: int = -1, descending: bool = False, **_: Any) -> Any:
    """Returns all along a dimension in order, as `torch.sort` does."""
    return _RETURNED.sort(_first(one, one.shape[dim], dim, descending))


def argsort(one: Any, dim: int = -1, descending: bool = False, **_: Any) -> Tensor:
    """Returns the places of all along a dimension in order, as `torch.argsort` does."""
    return _first(one, one.shape[dim], dim, descending)[1]
