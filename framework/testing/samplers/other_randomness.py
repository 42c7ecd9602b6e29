"""Chance of Python's `random` and `secrets` and of numpy, from an enumerator."""

from __future__ import annotations

import math
import random
import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from draftwood.base.errors import InvalidDistribution
from draftwood.testing.diagnosis.intervals import CannotEnumerate
from draftwood.testing.samplers.lazy_arrays import LazyArray
from draftwood.testing.samplers.lazy_numbers import LazyNumber
from draftwood.testing.samplers.reachable_weights import drawn_one, drawn_several
from draftwood.testing.samplers.running_chance import RunningChance

_MOST_ORDERS = 120
"""Orders among which one draw may choose, at most: five things have so many."""

_MOST_TRIALS = 16

_SEEDS = 2**31 - 1
"""Numbers among which a seed is drawn, at least, so that as good as no two calls have the same."""

_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")

_STATES = ("get_state", "getstate", "seed", "set_state", "setstate", "get_bit_generator", "set_bit_generator")
"""Functions of a random module that draw nothing."""

_OF_PROCESS = vars(random)["_inst"]

Functions = dict[str, Callable[..., Any]]


def refused(name: str) -> Callable[..., Any]:
    """Returns a function that refuses to draw in the name of another."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise CannotEnumerate(f"Random numbers of {name} cannot be enumerated; give samples=.")

    return refuse


def in_random_order(chance: RunningChance, count: int, drawn: int | None = None) -> list[Any]:
    """Returns the numbers below `count` in a random order, or the first `drawn` of them."""
    drawn = count if drawn is None else drawn
    if drawn == 1:
        return [chance.now.integer(0, count)]
    if math.perm(count, drawn) > _MOST_ORDERS:
        raise CannotEnumerate(
            f"{drawn} of {count} things are put in a random order, with too many outcomes; give samples=."
        )
    left = list(range(count))
    return [left.pop(chance.now.drawn_integer(0, len(left))) for _ in range(drawn)]


def hits_of(chance: RunningChance, trials: int, p: float) -> int:
    """Returns the number of successes in independent trials."""
    if not 0 <= p <= 1:
        raise InvalidDistribution(f"p={p} is no probability")
    if trials > _MOST_TRIALS:
        raise CannotEnumerate(f"A binomial number of {trials} trials is drawn; give samples=.")
    return sum(chance.now.rng.accept(float(p)) for _ in range(trials))


def of_python(chance: RunningChance) -> Functions:
    """Returns replacements of the functions of the module `random`, by name."""

    class Generator(metaclass=_Instances, real=random.Random):
        """The generator that `random.Random` and `random.SystemRandom` give within the call."""

        def __init__(self, seed: Any = None) -> None:
            refuse_seed("Python", seed)

        def __getattr__(self, name: str) -> Any:
            # One that is kept for ordinary calls draws as the module does there, whose seed is the proof's.
            return _found(name, drawing, "random") if chance.enumerated else getattr(random, name)

    drawing = _drawing_of_python(chance)
    others = {
        name: refused(f"random.{name}")
        for name in dir(random)
        if getattr(getattr(random, name), "__self__", None) is _OF_PROCESS
        and name not in (*drawing, *_STATES)
    }
    return {**drawing, **others, "Random": Generator, "SystemRandom": Generator}


def _drawing_of_python(chance: RunningChance) -> Functions:
    def choices(population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1) -> list[Any]:
        if cum_weights is not None:
            weights = np.diff(np.asarray(cum_weights, float), prepend=0.0)
        # Python's weights are float64, which torch would round to float32.
        chances = (
            torch.ones(len(population)) if weights is None else torch.as_tensor(np.asarray(weights, float))
        )
        return [population[drawn_one(chance.now.rng, chances.double())] for _ in range(k)]

    def randrange(start: int, stop: int | None = None, step: int = 1) -> Any:
        return _picked(range(start) if stop is None else range(start, stop, step), chance)

    def shuffle(x: Any) -> None:
        x[:] = [x[place] for place in in_random_order(chance, len(x))]

    def sample(population: Sequence[Any], k: int) -> list[Any]:
        return [_at(population, place) for place in in_random_order(chance, len(population), k)]

    def gauss(mu: float = 0.0, sigma: float = 1.0) -> Any:
        return mu + sigma * chance.now.normal()

    return {
        "random": lambda: chance.now.uniform(),
        "uniform": lambda a, b: a + (b - a) * chance.now.uniform(),
        "randint": lambda a, b: chance.now.integer(a, b + 1),
        "randrange": randrange,
        "getrandbits": lambda k: chance.now.integer(0, 2**k),
        "choice": lambda population: _picked(population, chance),
        "choices": choices,
        "shuffle": shuffle,
        "sample": sample,
        "expovariate": lambda lambd=1.0: chance.now.waiting_time(lambd),
        "normalvariate": gauss,
        "gauss": gauss,
        **(
            {"binomialvariate": lambda n=1, p=0.5: hits_of(chance, n, p)}
            if hasattr(random, "binomialvariate")
            else {}
        ),
    }


def _picked(population: Sequence[Any], chance: RunningChance) -> Any:
    return _at(population, chance.now.integer(0, len(population)))


def _at(population: Sequence[Any], place: Any) -> Any:
    if isinstance(population, range):  # a number that is not drawn yet stays one
        return population.start + population.step * place
    return population[place]


def of_secrets(chance: RunningChance) -> Functions:
    """Returns replacements of the functions of the module `secrets`, by name."""
    return {
        "randbelow": lambda exclusive_upper_bound: chance.now.integer(0, exclusive_upper_bound),
        "randbits": lambda k: chance.now.integer(0, 2**k),
        "choice": lambda sequence: _picked(sequence, chance),
        **{
            name: refused(f"secrets.{name}")
            for name in ("token_bytes", "token_hex", "token_urlsafe")
            if hasattr(secrets, name)
        },
    }


def of_numpy(chance: RunningChance) -> Functions:
    """Returns replacements of the functions of `numpy.random`, by name."""
    shared = _drawing_of_numpy(chance)
    random_, normal, integers = shared["random"], shared["normal"], shared["integers"]
    legacy: Functions = {
        **shared,
        "random_sample": random_,
        "ranf": random_,
        "sample": random_,
        "rand": lambda *shape: random_(shape or None),
        "randn": lambda *shape: normal(0.0, 1.0, shape or None),
        "randint": integers,
    }
    del legacy["integers"]
    real = np.random.RandomState
    others = {
        name: refused(f"numpy's {name}")
        for name in dir(real)
        if not name.startswith("_") and hasattr(np.random, name) and name not in (*legacy, *_STATES)
    }

    class Bits:
        """A source of bits that is made within the call, without a seed."""

        def __init__(self, seed: Any = None, **others: Any) -> None:
            refuse_seed("numpy", seed, *others.values())

    class Generator(metaclass=_Instances, real=np.random.Generator):
        """The generator that `default_rng` gives within the call."""

        drawing = shared
        ordinary: Any = staticmethod(np.random.default_rng)

        def __new__(cls, bits: Any = None) -> Any:
            # A generator that exists already stays what it is; running twice then tells that it is not seen.
            if isinstance(bits, cls._real):
                return bits
            if isinstance(bits, _REAL_BITS):
                return cls._real(bits)
            if not isinstance(bits, Bits):
                refuse_seed("numpy", bits)
            return super().__new__(cls)

        def __getattr__(self, name: str) -> Any:
            if chance.enumerated:
                return _found(name, self.drawing, "numpy's")
            return getattr(type(self).ordinary(np.random.randint(2**31)), name)

    class Legacy(Generator, metaclass=_Instances, real=real):
        """The generator that `RandomState` gives within the call."""

        drawing = legacy
        ordinary = real

    return {
        **legacy,
        **others,
        "default_rng": Generator,
        "Generator": Generator,
        "RandomState": Legacy,
        **dict.fromkeys(_BIT_GENERATORS, Bits),
    }


_REAL_BITS = np.random.BitGenerator
_REAL = np.random.RandomState


def _let_numpy_judge(name: str, *parameters: Any) -> None:
    """Raise the error of numpy for parameters that its function refuses, as the sampler's own."""
    try:
        getattr(_REAL(0), name)(*parameters)
    except ValueError as error:
        raise InvalidDistribution(str(error)) from error


def _whole(numbers: Any) -> Any:
    """Returns whole numbers as numpy's integers where all are drawn."""
    if not isinstance(numbers, np.ndarray) or any(isinstance(one, LazyNumber) for one in numbers.flat):
        return numbers
    return np.asarray(numbers).astype(np.int64)


def _drawing_of_numpy(chance: RunningChance) -> Functions:
    def random_(size: Any = None, dtype: Any = np.float64) -> Any:
        grid = (2**24, np.float32) if np.dtype(dtype) == np.float32 else (2**53, np.float64)
        return LazyArray.of(lambda: chance.now.uniform(*grid), size)

    def uniform(low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return LazyArray.of(lambda a, b: a + (b - a) * chance.now.uniform(), size, low, high)

    def integers(
        low: Any, high: Any = None, size: Any = None, dtype: Any = None, endpoint: bool = False
    ) -> Any:
        ends = (0, low) if high is None else (low, high)
        return _whole(LazyArray.of(lambda a, b: chance.now.integer(int(a), int(b) + endpoint), size, *ends))

    def choice(a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        values: Any = range(a) if isinstance(a, (int, np.integer)) else np.asarray(a)
        weights = torch.ones(len(values)) if p is None else torch.as_tensor(np.asarray(p, float))
        if p is not None:
            _let_numpy_judge("choice", len(values), size, replace, p)
        if size is None:
            return _at(
                values,
                chance.now.integer(0, len(values))
                if p is None
                else drawn_one(chance.now.rng, weights.double()),
            )
        count = math.prod(size) if isinstance(size, tuple) else int(size)
        drawn = (
            [drawn_one(chance.now.rng, weights.double()) for _ in range(count)]
            if replace
            else drawn_several(chance.now.rng, weights.double(), count)
        )
        return np.asarray(values)[np.array(drawn, int)].reshape(size)

    def multinomial(n: int, pvals: Any, size: Any = None) -> Any:
        chances = np.asarray(pvals, float)
        if np.ndim(n) or chances.ndim != 1:
            raise CannotEnumerate("numpy's multinomial is given arrays of laws; give samples=.")
        _let_numpy_judge("multinomial", n, chances)
        # The last place has the rest, whatever its own probability.
        weights = torch.tensor([*chances[:-1], max(0.0, 1 - chances[:-1].sum())], dtype=torch.float64)

        def counts() -> Any:
            drawn = [drawn_one(chance.now.rng, weights) for _ in range(n)]
            return np.bincount(drawn, minlength=len(weights))

        if size is None:
            return counts()
        shape = tuple(np.atleast_1d(size))
        return np.array([counts() for _ in range(math.prod(shape))]).reshape(*shape, len(weights))

    def binomial(n: Any, p: Any, size: Any = None) -> Any:
        _let_numpy_judge("binomial", n, p)
        return _whole(LazyArray.of(lambda a, b: hits_of(chance, int(a), b), size, n, p))

    def permutation(x: Any) -> Any:
        values = np.arange(x) if isinstance(x, (int, np.integer)) else np.asarray(x)
        return values[in_random_order(chance, len(values))]

    def shuffle(x: Any) -> None:
        x[:] = [x[place] for place in in_random_order(chance, len(x))]

    def exponential(scale: Any = 1.0, size: Any = None) -> Any:
        _let_numpy_judge("exponential", scale)
        return LazyArray.of(lambda a: a * chance.now.waiting_time(), size, scale)

    def gumbel(loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        _let_numpy_judge("gumbel", loc, scale)
        return LazyArray.of(lambda a, b: a + b * -chance.now.waiting_time().log(), size, loc, scale)

    def normal(loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        _let_numpy_judge("normal", loc, scale)
        return LazyArray.of(lambda a, b: a + b * chance.now.normal(), size, loc, scale)

    return {
        "random": random_,
        "uniform": uniform,
        "integers": integers,
        "choice": choice,
        "multinomial": multinomial,
        "binomial": binomial,
        "permutation": permutation,
        "shuffle": shuffle,
        "exponential": exponential,
        "standard_exponential": lambda size=None: exponential(1.0, size),
        "gumbel": gumbel,
        "normal": normal,
        "standard_normal": lambda size=None: normal(0.0, 1.0, size),
    }


def of_math() -> Functions:
    """Returns replacements of functions of the module `math`, which take floats and no other objects."""

    def either(name: str, of_lazy: Callable[[LazyNumber], Any]) -> Callable[..., Any]:
        plain = getattr(math, name)
        return lambda x, *more: of_lazy(x) if isinstance(x, LazyNumber) and not more else plain(x, *more)

    return {name: either(name, getattr(LazyNumber, name)) for name in ("log", "log1p", "exp", "sqrt")}


def refuse_seed(whose: str, *seeds: Any) -> None:
    """Raise `CannotEnumerate` if a generator that is made within the call has a seed that may repeat.

    A seed that is a random number itself makes it a generator without a seed. That number is used up, because
    two generators with one seed would give the same numbers.
    """
    for seed in seeds:
        parts = seed if isinstance(seed, (list, tuple)) else [seed]
        fresh = [one.chance.used_up(one, least=_SEEDS) for one in parts if isinstance(one, LazyNumber)]
        if seed is not None and not any(fresh):
            raise CannotEnumerate(
                f"A generator of {whose} is made with a seed inside the call, and its numbers follow from "
                "the seed: a fixed one gives the same at every call. Make it outside and give samples=, or "
                "make it without a seed."
            )


class _Instances(type):
    """Classes of generators in place of `real`, whose instances count as theirs."""

    _real: type

    def __new__(mcs, name: str, bases: tuple[type, ...], members: dict[str, Any], real: type) -> Any:
        made = super().__new__(mcs, name, bases, members)
        made._real = real
        return made

    def __init__(cls, name: str, bases: tuple[type, ...], members: dict[str, Any], real: type) -> None:
        super().__init__(name, bases, members)

    def __instancecheck__(cls, instance: Any) -> bool:
        return super().__instancecheck__(instance) or isinstance(instance, cls._real)


def _found(name: str, functions: Functions, whose: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return functions.get(name) or refused(f"{whose} {name}")
