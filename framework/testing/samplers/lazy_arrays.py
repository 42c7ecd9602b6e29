"""Arrays of numpy whose random numbers are not drawn before they are compared."""

from __future__ import annotations

from typing import Any

import numpy as np

from draftwood.testing.samplers.lazy_numbers import searched
from draftwood.testing.samplers.lazy_orders import places_in_order, places_won


class LazyArray(np.ndarray[Any, Any]):
    """An array of `LazyNumber` and numbers, as numpy's random functions give it."""

    @classmethod
    def of(cls, numbers: Any, shape: Any) -> Any:
        """Returns numbers in this shape, made one by one; a single number where the shape is None."""
        if shape is None:
            return numbers()
        held = np.empty(shape, object)
        for place in np.ndindex(held.shape):
            held[place] = numbers()
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
