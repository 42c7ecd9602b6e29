"""Arrays of numpy whose random numbers are not drawn before they are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from draftwood.testing.samplers.lazy_numbers import LazyNumber, searched
from draftwood.testing.samplers.lazy_orders import places_in_order, places_won


class LazyArray(np.ndarray[Any, Any]):
    """An array of `LazyNumber` and numbers, as numpy's random functions give it."""

    @classmethod
    def of(cls, numbers: Callable[..., Any], shape: Any, *parameters: Any) -> Any:
        """Returns numbers in this shape, each made by itself with its own parameters.

        Args:
            numbers: makes one number, of one value of each parameter.
            shape: of the array. None: of the broadcast parameters; a single number if they are single ones.
            *parameters: numbers or arrays, which are broadcast as numpy does.
        """
        given = [one if isinstance(one, LazyNumber) else np.asarray(one) for one in parameters]
        if shape is None and all(np.ndim(one) == 0 for one in given):
            return numbers(*parameters)
        held = np.empty(np.broadcast_shapes(*map(np.shape, given)) if shape is None else shape, object)
        rows = [np.broadcast_to(np.asarray(one, object), held.shape) for one in given]
        for place in np.ndindex(held.shape):
            held[place] = numbers(*(row[place] for row in rows))
        return held.view(cls)

    def argmax(self, axis: Any = None, *_: Any, **__: Any) -> Any:
        """Returns the place of the largest."""
        return places_won(np.asarray(self), axis, largest=True)

    def argmin(self, axis: Any = None, *_: Any, **__: Any) -> Any:
        """Returns the place of the smallest."""
        return places_won(np.asarray(self), axis, largest=False)

    def argsort(self, axis: Any = -1, *_: Any, **__: Any) -> Any:
        """Returns the places from the smallest to the largest."""
        return places_in_order(np.asarray(self), axis, self.shape[axis], largest=False)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func in (np.argmax, np.argmin, np.argsort) and isinstance(args[0], LazyArray):
            return getattr(args[0], func.__name__)(*args[1:], **kwargs)
        if func is np.searchsorted:
            return searched(*args, **kwargs)
        return super().__array_function__(func, types, args, kwargs)
