"""`LazyNumber`: a random number that is not drawn before it is compared; then the run branches."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood.laws.randomness import Randomness
from draftwood.testing.diagnosis.intervals import CannotEnumerate
from draftwood.testing.samplers import number_forms
from draftwood.testing.samplers.coarse_dtypes import in_full
from draftwood.testing.samplers.number_forms import LARGEST_WINS, SMALLEST_WINS, Form
from draftwood.testing.samplers.number_functions import divided, log, ndtri, with_one
from draftwood.testing.samplers.reachable_weights import drawn_several
from draftwood.testing.samplers.turning_points import turning_point

NEXT_TO_NOTHING = 1e-6
"""Probability up to which samplers may change their noise, as by bounds that keep it away from 0."""

FINE_STEPS = 2**24
"""Numbers among which a uniform is drawn, at least, in a race whose winner is drawn by its weights."""

MOST_INTEGERS = 4096
"""Whole numbers among which one draw may choose, at most."""

FEW_INTEGERS = 64
"""Whole numbers that are drawn at once, at most; among more a draw waits until one is compared or needed."""

NOT_DRAWN = "<a random number that is not drawn yet>"  # what is printed for one


@attrs.define(eq=False)
class LazyChance:
    """The uniforms of one run: for each the part of its grid in which it is known to lie.

    Attributes:
        rng: the enumerator, or any other source of chance.
    """

    rng: Randomness
    _bounds: list[tuple[int, int, int]] = attrs.field(factory=list, init=False)  # first, end, points of all
    _raced: set[int] = attrs.field(factory=set, init=False)
    _clamped: dict[int, float] = attrs.field(factory=dict, init=False)

    @property
    def resolution(self) -> float:
        """Returns the rounding error of an event's probability, due to the steps of the drawn uniforms.

        In a race it includes the probability that noise lies outside of the bounds that it is kept within.
        """
        return sum(
            1 / points + (self._clamped.get(base, 0.0) if base in self._raced else 0.0)
            for base, (low, end, points) in enumerate(self._bounds)
            if (low, end) != (0, points) or base in self._raced
        )

    def uniform(self, points: int = 2**53, kind: type[np.floating[Any]] = np.float64) -> LazyNumber:
        """Returns one of `points` evenly spaced numbers in [0, 1)."""
        self._bounds.append((0, points, points))
        number = len(self._bounds) - 1
        return LazyNumber(self, number, lambda point: kind(point / points), 1, Form.UNIFORM)

    def integer(self, low: int, high: int) -> Any:
        """Returns a whole number in [low, high): drawn where there are few, else lazy."""
        if high - low <= FEW_INTEGERS:
            return self.drawn_integer(low, high)
        self._bounds.append((0, high - low, high - low))
        number = len(self._bounds) - 1
        return LazyNumber(self, number, lambda point: np.float64(point + low), 1, None)

    def drawn_integer(self, low: int, high: int) -> int:
        """Returns a whole number in [low, high), drawn at once."""
        if high - low > MOST_INTEGERS:
            raise CannotEnumerate(f"One of {high - low} whole numbers is drawn; give samples=.")
        return low + self.rng.choose(torch.full((high - low,), 1.0, dtype=torch.float64))

    def waiting_time(self, rate: float = 1.0) -> LazyNumber:
        """Returns an exponential waiting time of this rate."""
        return -((1 - self.uniform()).log()) / rate

    def normal(self) -> LazyNumber:
        """Returns a standard normal number."""
        return self.uniform().applied(ndtri, 1)

    def below(self, number: LazyNumber, holds: Callable[[Any], bool], near: Any = math.nan) -> bool:
        """Returns `holds(value)`, for a condition that is true up to some value and false after it.

        Args:
            number: the number.
            holds: the condition.
            near: about the value after which it is false. Where it is, few points are tried.
        """
        low, high, points = self.bounds(number.base)
        rising = number.slope > 0
        first = turning_point(number.value, low, high, lambda value: holds(value) == rising, near)
        under = self.rng.accept((first - low) / (high - low))
        self._bounds[number.base] = (low, first, points) if under else (first, high, points)
        return under == rising

    def whole(self, number: LazyNumber, rounded: Callable[[Any], int]) -> int:
        """The whole number that `rounded` makes of the value."""
        ends = sorted(map(rounded, number.ends()))
        if ends[1] - ends[0] >= MOST_INTEGERS:
            raise CannotEnumerate(
                f"A random number is rounded to one of {ends[1] - ends[0] + 1} whole numbers; give samples=."
            )
        low, high = ends
        while low < high:  # halves make few choices of many numbers
            middle = (low + high) // 2
            if self.below(number, lambda value, middle=middle: rounded(value) <= middle, middle + 1):  # type: ignore[misc]
                high = middle
            else:
                low = middle + 1
        return low

    def next_to_never(self, number: LazyNumber, holds: Callable[[Any], bool]) -> bool:
        """Returns whether a number of which nothing is known meets a condition with next to no probability.

        The condition may hold at the ends of its values only.
        """
        low, high, points = self.bounds(number.base)
        few = math.ceil(NEXT_TO_NOTHING * points)
        if (low, high) != (0, points) or any(map(holds, (number.value(few), number.value(high - 1 - few)))):
            return False
        first = turning_point(number.value, 0, few, holds)
        last = turning_point(number.value, high - few, high, lambda value: not holds(value))
        self._clamped[number.base] = self._clamped.get(number.base, 0.0) + (first + high - last) / points
        return True

    def bounds(self, base: int) -> tuple[int, int, int]:
        """First point, the end of the points, and points of the whole grid, of uniform `base`."""
        if base in self._raced:
            raise CannotEnumerate(
                "A random number is used again after it was compared with others; give samples=."
            )
        return self._bounds[base]

    def used_up(self, number: LazyNumber, *, least: int) -> bool:
        """Lets nobody use a number again; returns whether it is one of `least`, with nothing known of it."""
        low, high, points = self.bounds(number.base)
        self._raced.add(number.base)
        return (low, high) == (0, points) and points >= least

    def order(self, numbers: Sequence[Any], count: int, *, largest: bool) -> list[int]:
        """Returns the places of the `count` largest or smallest of numbers of one form, in order."""
        wins, never = (LARGEST_WINS, -math.inf) if largest else (SMALLEST_WINS, math.inf)
        lazy = [one for one in numbers if isinstance(one, LazyNumber)]
        forms, bases = {one.form for one in lazy}, [one.base for one in lazy]
        others = all(isinstance(one, LazyNumber) or float(one) == never for one in numbers)
        known = [self.bounds(base) for base in bases]
        fresh = all(low == 0 and high == points >= FINE_STEPS for low, high, points in known)
        if not (len(forms) == 1 and forms <= wins and len(set(bases)) == len(bases) and others and fresh):
            raise CannotEnumerate(
                "Random numbers are compared with each other, and not as in an exponential race or with "
                "Gumbel noise of float32 or float64 that no rounding and no bounds change; give samples=."
            )
        self._raced |= set(bases)
        rates = [one.rate if isinstance(one, LazyNumber) else 0.0 for one in numbers]
        if not any(rates):  # all are alike: 0 / T, or -inf
            return [*range(count)]
        drawn = drawn_several(self.rng, torch.tensor(rates, dtype=torch.float64), count)
        # Numbers that never win follow; torch and numpy promise no order of equal ones.
        return [*drawn, *(place for place in range(len(numbers)) if place not in drawn)][:count]


@attrs.frozen(eq=False, repr=False)
class LazyNumber:
    """A monotone function of a uniform that is not drawn yet.

    It may be added to numbers, multiplied and divided, and its logarithm taken; a comparison with a number
    draws as much of it as answers that.

    Attributes:
        chance: of the run.
        base: the uniform.
        value: the function, of the point of the uniform's grid.
        slope: 1 where it rises with the uniform, -1 where it falls.
        form: what it is as a function of a waiting time; None for anything else.
        rate: of that time.
    """

    in_torch: ClassVar[Callable[..., Any]]  # of LazyTensor, whose module needs this one
    chance: LazyChance
    base: int
    value: Callable[[int], Any]
    slope: int
    form: Form | None = None
    rate: float = 1.0

    def applied(
        self, function: Callable[[Any], Any], slope: int, form: Form | None = None, rate: float = 1.0
    ) -> LazyNumber:
        """Returns `function` of it, which rises (1) or falls (-1)."""
        value = self.value
        return LazyNumber(
            self.chance, self.base, lambda point: function(value(point)), self.slope * slope, form, rate
        )

    def ends(self) -> tuple[Any, Any]:
        """Returns the values between which it is known to lie, the one of the smallest uniform first."""
        low, high, _ = self.chance.bounds(self.base)
        return self.value(low), self.value(high - 1)

    def __repr__(self) -> str:
        return NOT_DRAWN

    @with_one
    def __add__(self, other: Any) -> LazyNumber:
        c = _number(other)
        return self.applied(lambda x: x + c, 1, *number_forms.of_sum(self.form, self.rate, c))

    __radd__ = __add__

    def __neg__(self) -> LazyNumber:
        return self.applied(lambda x: -x, -1, *number_forms.of_negative(self.form, self.rate))

    @with_one
    def __sub__(self, other: Any) -> LazyNumber:
        opposite: Any = -_number(other)
        return self.__add__(opposite)

    @with_one
    def __rsub__(self, other: Any) -> LazyNumber:
        return self.__neg__().__add__(other)

    @with_one
    def __mul__(self, other: Any) -> LazyNumber:
        c = _number(other)
        if c < 0:
            opposite: LazyNumber = self * -c
            return -opposite
        return self.applied(lambda x: x * c, 1, *number_forms.of_product(self.form, self.rate, c))

    __rmul__ = __mul__

    @with_one
    def __truediv__(self, other: Any) -> LazyNumber:
        c = _number(other)
        if c < 0:
            opposite: LazyNumber = self / -c
            return -opposite
        return self.applied(lambda x: divided(x, c), 1, *number_forms.of_quotient(self.form, self.rate, c))

    @with_one
    def __rtruediv__(self, other: Any) -> LazyNumber:
        c = _number(other)
        if c < 0:
            opposite: LazyNumber = -c / self
            return -opposite
        ends = self.ends()
        if min(ends) < 0 < max(ends):
            raise CannotEnumerate("A random number of either sign is divided by; give samples=.")
        return self.applied(lambda x: divided(c, x), -1, *number_forms.of_inverse(self.form, self.rate, c))

    def log(self) -> LazyNumber:
        """Returns its natural logarithm, -inf of 0."""
        return self.applied(log, 1, *number_forms.of_logarithm(self.form, self.rate))

    def log1p(self) -> LazyNumber:
        """Returns the logarithm of 1 more."""
        return (self + 1).log()

    def exp(self) -> LazyNumber:
        """Returns its exponential."""
        return self.applied(np.exp, 1, *number_forms.of_exponential(self.form, self.rate))

    def sqrt(self) -> LazyNumber:
        """Returns its root."""
        return self.applied(np.sqrt, 1)

    def clamped(self, low: Any, high: Any) -> LazyNumber:
        """Returns it within bounds, of which None is none; those that it next to never meets are rounding."""
        low, high = (None if bound is None else _number(bound) for bound in (low, high))

        def outside(x: Any) -> bool:
            return bool((low is not None and x < low) or (high is not None and x > high))

        def clamp(x: Any) -> Any:
            x = x if low is None else max(x, low)
            return x if high is None else min(x, high)

        kept = self.form is not None and self.chance.next_to_never(self, outside)
        return self.applied(clamp, 1, self.form if kept else None, self.rate if kept else 1.0)

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **options: Any) -> Any:
        # numpy gives the entries of arrays as numbers of Python, which do not tell of a float16.
        held = [np.empty((), object) if isinstance(one, LazyNumber) else in_full(one) for one in given]
        for array, one in zip(held, given, strict=True):
            if isinstance(one, LazyNumber):
                array[()] = one
        return getattr(ufunc, method)(*held, **options)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        if func is np.searchsorted:
            return searched(*args, **kwargs)
        if func in (np.round, np.around):
            return self.rounded(*args[1:], *kwargs.values())
        raise CannotEnumerate(f"A random number is given to numpy's {func.__name__}; give samples=.")

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        _ = [in_full(one) for one in args if not isinstance(one, LazyNumber)]
        return cls.in_torch(func, types, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise CannotEnumerate(f"A random number is asked for its {name!r}; give samples=.")

    def _refused(self, *_: Any) -> Any:
        raise CannotEnumerate("A random number is used in a way that cannot be enumerated; give samples=.")

    __pow__ = __rpow__ = __mod__ = __rmod__ = __floordiv__ = __rfloordiv__ = __abs__ = _refused

    @with_one
    def __lt__(self, other: Any) -> bool:
        c = self._bound(other)
        return self.chance.below(self, lambda x: bool(x < c), c)

    @with_one
    def __le__(self, other: Any) -> bool:
        c = self._bound(other)
        return self.chance.below(self, lambda x: bool(x <= c), c)

    @with_one
    def __gt__(self, other: Any) -> bool:
        c = self._bound(other)
        return c == c and not self <= c

    @with_one
    def __ge__(self, other: Any) -> bool:
        c = self._bound(other)
        return c == c and not self < c

    def __int__(self) -> int:
        return self.chance.whole(self, int)

    __trunc__ = __index__ = __int__

    def __round__(self, digits: int | None = None) -> Any:
        return self.chance.whole(self, round) if digits is None else self.rounded(digits)

    def rounded(self, digits: int = 0) -> LazyNumber:
        """Returns it rounded to so many decimal digits."""
        return self.applied(lambda x: np.round(x, digits), 1)

    def __floor__(self) -> int:
        return self.chance.whole(self, math.floor)

    def floor(self) -> int:
        """Returns the whole number below it, as numpy asks for it."""
        return math.floor(self)

    def __bool__(self) -> bool:
        return not (self.chance.below(self, lambda x: bool(x <= 0)) and not self < 0)

    def __float__(self) -> float:
        raise CannotEnumerate(
            "A random number is made a float; only sums, products, logarithms and comparisons with numbers "
            "can be enumerated: take uniforms as an argument, or give samples=."
        )

    def __eq__(self, other: object) -> bool:
        raise CannotEnumerate("A random number is tested for equality; give samples=.")

    __hash__ = None  # type: ignore[assignment]

    def _bound(self, other: Any) -> Any:
        if isinstance(other, LazyNumber):
            raise CannotEnumerate("Two random numbers are compared with each other; give samples=.")
        return _number(other)


def searched(heights: Any, numbers: Any, side: str = "left", sorter: Any = None) -> Any:
    """Returns the places of random numbers among ascending heights, as `numpy.searchsorted` does."""
    found = np.asarray(heights)
    if found.ndim != 1 or found.dtype == object or sorter is not None:
        raise CannotEnumerate("Random numbers are searched in other than one row of heights; give samples=.")

    def at(number: Any) -> int:
        below = (number < height if side == "right" else number <= height for height in found.tolist())
        return next((place for place, holds in enumerate(below) if holds), len(found))

    if isinstance(numbers, LazyNumber):
        return at(numbers)
    return np.vectorize(at, otypes=[np.int64])(np.asarray(numbers))


def _number(other: Any) -> Any:
    if isinstance(other, LazyNumber):
        raise CannotEnumerate("Two random numbers are combined with each other; give samples=.")
    full = in_full(other)
    return full.detach().cpu().numpy()[()] if isinstance(full, Tensor) else full
