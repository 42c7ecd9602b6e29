"""Chance of torch, numpy and Python under an enumerator: every outcome of code that draws with them."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from draftwood.laws.randomness import Randomness
from draftwood.testing.diagnosis.intervals import CannotEnumerate
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.testing.proofs.lossless import JointLaw
from draftwood.testing.samplers.lazy_numbers import LazyChance, LazyNumber
from draftwood.testing.samplers.lazy_tensors import LazyArray, LazyTensor, written
from draftwood.testing.samplers.used_generators import UsedGenerators, refused_seeding

RAISED = (-1,)
"""What stands for the tokens of a call that raised."""

_GRIDS: dict[torch.dtype, tuple[int, type[np.floating[Any]]]] = {
    torch.float64: (2**53, np.float64),
    torch.float32: (2**24, np.float32),
    torch.bfloat16: (2**8, np.float32),
    torch.float16: (2**11, np.float16),
}
"""Uniforms of every dtype: how many there are, and the precision in which they are computed with."""

_SEEDING: tuple[tuple[Any, str], ...] = (
    *((owner, name) for owner in (torch, torch.random) for name in ("manual_seed", "seed", "set_rng_state")),
    (random, "seed"),
    (random, "setstate"),
    (np.random, "seed"),
    (np.random, "set_state"),
)

_CONTINUOUS = ("normal", "poisson", "randperm")
_CONTINUOUS_IN_PLACE = ("cauchy_", "log_normal_", "geometric_", "random_")


@contextlib.contextmanager
def torch_randomness(rng: Randomness, *, used: UsedGenerators | None = None) -> Iterator[LazyChance]:
    """Within it the chance of torch, of Python's `random` and of numpy is that of `rng`.

    Random numbers are lazy: a run branches where one is compared with a number, on its own or after sums,
    products, logarithms and exponentials, and each side has its weight. The largest of `p / exponential`, or
    of logits with Gumbel noise, is a choice of `rng` by its weights; so are `multinomial`, `bernoulli` and
    the `choice` of the others; that they draw by their weights is taken for granted. Uniforms are multiples
    of 2^-24 in float32 and of 2^-53 in float64.

    Functions that were imported by name before, generators that exist already, and sources of the system are
    not reached: what they draw cannot be seen here.

    Args:
        rng: answers the draws.
        used: the states of each `generator=` in earlier runs of the same code.

    Raises:
        CannotEnumerate: other chance is asked for, a random number is used otherwise, or a generator is
            seeded so that it repeats its numbers.
    """
    chance, used = LazyChance(rng), used or UsedGenerators()
    with contextlib.ExitStack() as stack:
        for owner, functions in (
            (torch, _of_torch(chance)),
            (Tensor, _of_tensors(chance)),
            (random, _of_python(chance)),
            (np.random, _of_numpy(chance)),
            (math, _of_math()),
        ):
            for name, function in functions.items():
                watched = used.watching(function) if owner in (torch, Tensor) else function
                stack.enter_context(mock.patch.object(owner, name, watched))
        for owner, name in _SEEDING:
            refuse = refused_seeding(f"{owner.__name__}.{name}")
            stack.enter_context(mock.patch.object(owner, name, refuse))
        yield chance


def _refused(name: str) -> Callable[..., Any]:
    def refuse(*_: Any, **__: Any) -> Any:
        raise CannotEnumerate(f"Random numbers of {name} cannot be enumerated; give samples=.")

    return refuse


def _many(one: Callable[[], Any], shape: Any) -> Any:
    return np.asarray(LazyArray.of(one, tuple(shape)))


def _of_torch(chance: LazyChance) -> dict[str, Callable[..., Any]]:
    rng = chance.rng

    def made(one: Callable[[], Any], shape: Any, dtype: torch.dtype | None, device: Any) -> Tensor:
        dtype = dtype or torch.get_default_dtype()
        return LazyTensor.of(_many(one, shape), dtype=dtype, device=device or "cpu")

    def size_of(size: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if "size" in options:
            return options["size"]
        return size[0] if size and isinstance(size[0], (tuple, list, torch.Size)) else size

    def uniform_of(dtype: torch.dtype) -> Callable[[], LazyNumber]:
        return lambda: chance.uniform(*_GRIDS[dtype])

    def rand(*size: Any, **options: Any) -> Tensor:
        dtype = options.get("dtype") or torch.get_default_dtype()
        return made(uniform_of(dtype), size_of(size, options), dtype, options.get("device"))

    def rand_like(like: Tensor, **options: Any) -> Tensor:
        dtype, device = options.get("dtype") or like.dtype, options.get("device") or like.device
        return made(uniform_of(dtype), like.shape, dtype, device)

    def randn(*size: Any, **options: Any) -> Tensor:
        return made(chance.normal, size_of(size, options), options.get("dtype"), options.get("device"))

    def randn_like(like: Tensor, **options: Any) -> Tensor:
        return made(
            chance.normal,
            like.shape,
            options.get("dtype") or like.dtype,
            options.get("device") or like.device,
        )

    def randint(*given: Any, **options: Any) -> Tensor:
        size = options.get("size", given[-1])
        ends = [*(given if "size" in options else given[:-1])]
        low: Any = options.get("low", 0 if len(ends) < 2 else ends[0])
        high: Any = options["high"] if "high" in options else ends[-1]
        numbers = _many(lambda: chance.integer(int(low), int(high)), size)
        device = options.get("device") or "cpu"
        if any(isinstance(one, LazyNumber) for one in numbers.reshape(-1)):
            return LazyTensor.of(numbers, dtype=torch.float64, device=device)
        return torch.tensor(
            numbers.astype(np.int64), dtype=options.get("dtype") or torch.int64, device=device
        )

    def multinomial(weights: Tensor, num_samples: int, replacement: bool = False, **_: Any) -> Tensor:
        def drawn(row: Tensor) -> list[int]:
            if replacement or num_samples == 1:
                return [rng.choose(row) for _ in range(num_samples)]
            return list(rng.without_replacement(row, num_samples))

        rows = [drawn(row.double()) for row in weights.reshape(-1, weights.shape[-1])]
        return torch.tensor(rows, device=weights.device).reshape(*weights.shape[:-1], num_samples)

    def bernoulli(p: Tensor, **_: Any) -> Tensor:
        hits = [float(rng.accept(one)) for one in p.reshape(-1).tolist()]
        return torch.tensor(hits, dtype=p.dtype, device=p.device).reshape(p.shape)

    return {
        "rand": rand,
        "rand_like": rand_like,
        "randn": randn,
        "randn_like": randn_like,
        "randint": randint,
        "multinomial": multinomial,
        "bernoulli": bernoulli,
        **{name: _refused(f"torch.{name}") for name in _CONTINUOUS},
    }


def _of_tensors(chance: LazyChance) -> dict[str, Callable[..., Any]]:
    of_torch = _of_torch(chance)

    def uniform_(one: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
        grid = _GRIDS[one.dtype]
        unit = low == 0 and high == 1
        return written(
            one,
            _many(
                lambda: chance.uniform(*grid) if unit else low + (high - low) * chance.uniform(*grid),
                one.shape,
            ),
        )

    def exponential_(one: Tensor, lambd: float = 1.0, **_: Any) -> Tensor:
        return written(one, _many(lambda: chance.waiting_time(lambd), one.shape))

    def normal_(one: Tensor, mean: float = 0.0, std: float = 1.0, **_: Any) -> Tensor:
        return written(one, _many(lambda: mean + std * chance.normal(), one.shape))

    def bernoulli_(one: Tensor, p: Any = 0.5, **_: Any) -> Tensor:
        return one.copy_(of_torch["bernoulli"](torch.as_tensor(p, dtype=torch.float64).expand(one.shape)))

    return {
        "uniform_": uniform_,
        "exponential_": exponential_,
        "normal_": normal_,
        "bernoulli_": bernoulli_,
        "bernoulli": of_torch["bernoulli"],
        "multinomial": of_torch["multinomial"],
        **{name: _refused(f"Tensor.{name}") for name in _CONTINUOUS_IN_PLACE},
    }


def _of_python(chance: LazyChance) -> dict[str, Callable[..., Any]]:
    rng = chance.rng

    def choices(population: Any, weights: Any = None, *, cum_weights: Any = None, k: int = 1) -> list[Any]:
        if cum_weights is not None:
            weights = np.diff(np.asarray(cum_weights, float), prepend=0.0)
        chances = torch.ones(len(population)) if weights is None else torch.as_tensor(list(weights))
        return [population[rng.choose(chances.double())] for _ in range(k)]

    return {
        "random": chance.uniform,
        "uniform": lambda a, b: a + (b - a) * chance.uniform(),
        "randint": lambda a, b: chance.integer(a, b + 1),
        "randrange": lambda start, stop=None: chance.integer(
            0 if stop is None else start, start if stop is None else stop
        ),
        "choice": lambda population: population[chance.integer(0, len(population))],
        "choices": choices,
        "expovariate": lambda lambd=1.0: chance.waiting_time(lambd),
        "normalvariate": lambda mu=0.0, sigma=1.0: mu + sigma * chance.normal(),
        "gauss": lambda mu=0.0, sigma=1.0: mu + sigma * chance.normal(),
        **{
            name: _refused(f"random.{name}")
            for name in (
                "betavariate",
                "gammavariate",
                "getrandbits",
                "randbytes",
                "sample",
                "shuffle",
                "triangular",
            )
        },
    }


def _of_numpy(chance: LazyChance) -> dict[str, Callable[..., Any]]:
    rng = chance.rng

    def random_(size: Any = None, dtype: Any = np.float64, **_: Any) -> Any:
        grid = (2**24, np.float32) if np.dtype(dtype) == np.float32 else (2**53, np.float64)
        return LazyArray.of(lambda: chance.uniform(*grid), size)

    def uniform(low: float = 0.0, high: float = 1.0, size: Any = None) -> Any:
        return LazyArray.of(lambda: low + (high - low) * chance.uniform(), size)

    def integers(
        low: int, high: int | None = None, size: Any = None, dtype: Any = None, endpoint: bool = False
    ) -> Any:
        first, end = (0, low) if high is None else (low, high)
        return LazyArray.of(lambda: chance.integer(int(first), int(end) + endpoint), size)

    def choice(a: Any, size: Any = None, replace: bool = True, p: Any = None) -> Any:
        values = np.arange(a) if isinstance(a, (int, np.integer)) else np.asarray(a)
        weights = torch.ones(len(values)) if p is None else torch.as_tensor(np.asarray(p, float))
        if size is None:
            return values[rng.choose(weights.double())]
        count = math.prod(size) if isinstance(size, tuple) else int(size)
        drawn = (
            [rng.choose(weights.double()) for _ in range(count)]
            if replace
            else rng.without_replacement(weights.double(), count)
        )
        return values[np.array(drawn, int)].reshape(size)

    def exponential(scale: float = 1.0, size: Any = None) -> Any:
        return LazyArray.of(lambda: scale * chance.waiting_time(), size)

    def gumbel(loc: float = 0.0, scale: float = 1.0, size: Any = None) -> Any:
        return LazyArray.of(lambda: loc + scale * -chance.waiting_time().log(), size)

    def normal(loc: float = 0.0, scale: float = 1.0, size: Any = None) -> Any:
        return LazyArray.of(lambda: loc + scale * chance.normal(), size)

    shared: dict[str, Callable[..., Any]] = {
        "random": random_,
        "uniform": uniform,
        "choice": choice,
        "exponential": exponential,
        "standard_exponential": lambda size=None, **_: exponential(1.0, size),
        "gumbel": gumbel,
        "normal": normal,
        "standard_normal": lambda size=None, **_: normal(0.0, 1.0, size),
        **{
            name: _refused(f"numpy's {name}")
            for name in (
                "beta",
                "binomial",
                "dirichlet",
                "gamma",
                "multinomial",
                "permutation",
                "poisson",
                "shuffle",
            )
        },
    }
    legacy: dict[str, Callable[..., Any]] = {
        "random_sample": random_,
        "ranf": random_,
        "sample": random_,
        "rand": lambda *shape: random_(shape or None),
        "randn": lambda *shape: normal(0.0, 1.0, shape or None),
        "randint": integers,
    }

    class Generator:
        """The generator that `default_rng` and `RandomState` give."""

        def __init__(self, seed: Any = None) -> None:
            if seed is not None:
                raise CannotEnumerate(
                    f"A generator of numpy is made with the seed {seed!r:.40} inside the call, so that it "
                    "gives the same numbers at every call; make it outside and give samples=."
                )

        def __getattr__(self, name: str) -> Any:
            found = {**shared, **legacy, "integers": integers}.get(name)
            return _refused(f"numpy's {name}") if found is None else found

    return {**shared, **legacy, "default_rng": Generator, "RandomState": Generator}


def _of_math() -> dict[str, Callable[..., Any]]:
    """Python's functions of floats, which take no other objects."""

    def either(name: str, of_lazy: Callable[[LazyNumber], Any]) -> Callable[..., Any]:
        plain = getattr(math, name)
        return lambda x, *more: of_lazy(x) if isinstance(x, LazyNumber) and not more else plain(x, *more)

    return {name: either(name, getattr(LazyNumber, name)) for name in ("log", "log1p", "exp", "sqrt")}


def as_tokens(returned: Sequence[int] | Tensor) -> tuple[int, ...]:
    """Returns the tokens that a sampler or a call returned.

    Raises:
        CannotEnumerate: some of them are random numbers that are not drawn yet.
    """
    if isinstance(returned, LazyTensor):
        raise CannotEnumerate("It returns random numbers that were compared with nothing; give samples=.")
    if isinstance(returned, Tensor):
        return tuple(returned.flatten().tolist())
    return tuple(int(token) for token in returned)


def torch_law(run: Callable[[], Sequence[int] | Tensor], *, budget: int = 100_000) -> JointLaw:
    """The exact law of the tokens that `run` returns, where torch is its only chance.

    So all of a `generate` can be enumerated, with models over a few tokens; `error` of the result says
    how far it is from another's.

    Args:
        run: returns tokens; it is called once for every outcome and must begin anew each time.
        budget: outcomes to visit at most.

    Returns:
        The law. Where `run` raises, its outcome is `RAISED` and `fault` has the first error.

    Raises:
        CannotEnumerate: as `torch_randomness` does.
        BudgetExceeded: more than `budget` outcomes.
    """
    fault, used = "", UsedGenerators()

    def once(rng: Randomness) -> tuple[int, ...]:
        nonlocal fault
        with torch_randomness(rng, used=used):
            try:
                returned = run()
            except CannotEnumerate:
                raise
            except Exception as error:
                fault = fault or f"raises ({type(error).__name__}: {error})"
                return RAISED
        return as_tokens(returned)

    law: dict[tuple[int, ...], float] = {}
    runs = 0
    for weight, text in enumerate_outcomes(once, budget=budget):
        law[text] = law.get(text, 0.0) + weight
        runs += 1
    expected = sum(weight * len(text) for text, weight in law.items() if text != RAISED)
    return JointLaw(law, expected, runs, fault)
