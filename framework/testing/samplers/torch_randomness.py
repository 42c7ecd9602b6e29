"""Chance of torch, numpy and Python under an enumerator: every outcome of code that draws with them."""

from __future__ import annotations

import contextlib
import functools
import math
import random
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from draftwood.laws.randomness import Randomness
from draftwood.testing.diagnosis.intervals import CannotEnumerate
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.testing.proofs.lossless import JointLaw
from draftwood.testing.samplers.coarse_dtypes import is_coarse
from draftwood.testing.samplers.lazy_arrays import LazyArray
from draftwood.testing.samplers.lazy_dtypes import held_as
from draftwood.testing.samplers.lazy_numbers import FEW_INTEGERS, LazyChance, LazyNumber
from draftwood.testing.samplers.lazy_tensors import LazyTensor, written, written_for_a_while
from draftwood.testing.samplers.other_randomness import (
    in_random_order,
    of_math,
    of_numpy,
    of_python,
    of_secrets,
    refused,
)
from draftwood.testing.samplers.reachable_weights import drawn_one, drawn_several
from draftwood.testing.samplers.replaced_functions import named_as, replaced
from draftwood.testing.samplers.returned_tokens import as_tokens
from draftwood.testing.samplers.running_chance import RunningChance
from draftwood.testing.samplers.sampler_errors import RefusedWeights, in_plain_words, plain, without_exits
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

_SEEDING = tuple(
    (owner, name, refused_seeding(f"{owner.__name__}.{name}"))
    for owner, names in (
        (torch, ("manual_seed", "seed", "set_rng_state")),
        (torch.random, ("manual_seed", "seed", "set_rng_state")),
        (random, ("seed", "setstate")),
        (np.random, ("seed", "set_state")),
    )
    for name in names
)
_RUNNING = RunningChance()

_NOT_FOLLOWED = ("poisson", "binomial", "randint_like", "_standard_gamma", "_sample_dirichlet")
_NOT_FOLLOWED_IN_PLACE = ("cauchy_", "log_normal_", "geometric_", "random_")


@contextlib.contextmanager
def torch_randomness(rng: Randomness, *, used: UsedGenerators | None = None) -> Iterator[LazyChance]:
    """Within it the chance of torch, of Python's `random` and `secrets` and of numpy is that of `rng`.

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
    CannotEnumerate.made.clear()
    run = _RUNNING.of_run(rng, used or UsedGenerators())
    with run as chance, replaced(_functions()), written_for_a_while():
        yield chance
    if CannotEnumerate.made:  # the code caught it, and went on without its number
        raise CannotEnumerate.made[0]


@contextlib.contextmanager
def followed_generators() -> Iterator[None]:
    """Within it generators of Python and numpy are made as ones that a later `torch_randomness` follows.

    They draw as the modules' functions do until then.
    """
    with replaced([one for one in _functions() if isinstance(one[2], type)]):
        yield


@functools.cache
def _functions() -> list[tuple[Any, str, Callable[..., Any]]]:
    """Returns the functions that take the places of others, with the owner and the name of each.

    They are made once: to make them takes longer than most calls of a sampler.
    """
    functions: list[tuple[Any, str, Callable[..., Any]]] = []
    for owner, replacements in (
        (torch, _of_torch(_RUNNING)),
        (Tensor, _of_tensors(_RUNNING)),
        (random, of_python(_RUNNING)),
        (secrets, of_secrets(_RUNNING)),
        (np.random, of_numpy(_RUNNING)),
        (math, of_math()),
    ):
        for name, function in replacements.items():
            watched = _watching(function) if owner in (torch, Tensor) else function
            if not isinstance(function, type):
                watched = _answering(f"{owner.__name__}.{name}", watched)
            functions.append((owner, name, watched))
    return [*functions, *_SEEDING]


def _watching(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function`, which draws from no generator, with a look at the `generator=` it is given."""

    def watched(*args: Any, generator: torch.Generator | None = None, **options: Any) -> Any:
        if generator is not None:
            _RUNNING.used.use(generator)
        return function(*args, **options)

    return named_as(function, watched)


def _answering(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function`, for which arguments that only the real one takes are no fault of the sampler."""

    def answer(*args: Any, **options: Any) -> Any:
        try:
            return function(*args, **options)
        except TypeError as error:
            raise CannotEnumerate(
                f"{name} is called with arguments that cannot be enumerated ({plain(str(error))}); "
                "give samples=."
            ) from error

    return named_as(function, answer)


def _grid_of(dtype: torch.dtype) -> tuple[int, type[np.floating[Any]]]:
    if dtype not in _GRIDS:
        raise CannotEnumerate(f"Uniforms of {dtype} cannot be enumerated; give samples=.")
    return _GRIDS[dtype]


def _refuse_coarse(what: str, dtype: torch.dtype) -> None:
    """Raise `CannotEnumerate` for a dtype in which torch draws such numbers otherwise than it says."""
    if is_coarse(dtype):
        raise CannotEnumerate(
            f"{what} of {dtype} cannot be enumerated; draw them in float32, or give samples=."
        )


def _many(one: Callable[[], Any], shape: Any) -> Any:
    return np.asarray(LazyArray.of(one, tuple(shape)))


def _of_torch(chance: RunningChance) -> dict[str, Callable[..., Any]]:
    def made(one: Callable[[], Any], shape: Any, options: dict[str, Any], dtype: Any = None) -> Tensor:
        out = options.pop("out", None)
        dtype = options.pop("dtype", None) or dtype or torch.get_default_dtype()
        device = options.pop("device", None) or "cpu"
        # They change where a tensor lies, and nothing that is drawn.
        for name in ("layout", "pin_memory", "requires_grad", "memory_format"):
            options.pop(name, None)
        if options:
            raise TypeError(f"unknown: {', '.join(options)}")
        numbers = _many(one, shape)
        if out is not None:
            return written(out, numbers)
        held = numbers if dtype is torch.float64 else held_as(numbers, dtype)
        return LazyTensor.of(held, dtype=dtype, device=device)

    def size_of(size: tuple[Any, ...], options: dict[str, Any]) -> Any:
        if "size" in options:
            return options.pop("size")
        return size[0] if size and isinstance(size[0], (tuple, list, torch.Size)) else size

    def dtype_of(options: dict[str, Any], dtype: torch.dtype | None = None) -> torch.dtype:
        out = options.get("out")
        return options.get("dtype") or dtype or (torch.get_default_dtype() if out is None else out.dtype)

    def uniform_of(dtype: torch.dtype) -> Callable[[], LazyNumber]:
        grid = _grid_of(dtype)
        return lambda: chance.now.uniform(*grid)

    def normal_of(dtype: torch.dtype) -> Callable[[], LazyNumber]:
        _refuse_coarse("Normal numbers", dtype)
        return lambda: chance.now.normal()

    def rand(*size: Any, **options: Any) -> Tensor:
        shape = size_of(size, options)
        return made(uniform_of(dtype_of(options)), shape, options)

    def rand_like(like: Tensor, **options: Any) -> Tensor:
        options = {"device": like.device} | options
        return made(uniform_of(dtype_of(options, like.dtype)), like.shape, options, like.dtype)

    def randn(*size: Any, **options: Any) -> Tensor:
        shape = size_of(size, options)
        return made(normal_of(dtype_of(options)), shape, options)

    def randn_like(like: Tensor, **options: Any) -> Tensor:
        options = {"device": like.device} | options
        return made(normal_of(dtype_of(options, like.dtype)), like.shape, options, like.dtype)

    def normal(mean: Any, std: Any = 1.0, size: Any = None, **options: Any) -> Tensor:
        like = next((one for one in (mean, std) if isinstance(one, Tensor)), None)
        if like is None:
            one = normal_of(dtype_of(options))
            return made(lambda: mean + std * one(), size, options)
        shape = torch.broadcast_shapes(*(one.shape for one in (mean, std) if isinstance(one, Tensor)))
        drawn = made(normal_of(like.dtype), shape, {"device": like.device} | options, like.dtype)
        found: Tensor = drawn * std + mean
        return found

    def randint(*given: Any, **options: Any) -> Tensor:
        ends = [*given]
        size = options.pop("size") if "size" in options else ends.pop()
        ends = [options.pop(name) for name in ("low",) if name in options] + ends
        ends += [options.pop(name) for name in ("high",) if name in options]
        low, high = (int(end) for end in (ends if len(ends) == 2 else [0, *ends]))
        if high - low > FEW_INTEGERS:
            return made(lambda: chance.now.integer(low, high), size, options, torch.int64)
        drawn = [chance.now.drawn_integer(low, high) for _ in range(math.prod(size))]
        out, dtype = options.get("out"), options.get("dtype") or torch.int64
        whole = torch.tensor(drawn, dtype=dtype, device=options.get("device")).reshape(tuple(size))
        return whole if out is None else out.resize_(whole.shape).copy_(whole)

    def randperm(n: int, *, out: Any = None, dtype: Any = None, device: Any = None, **_: Any) -> Tensor:
        order = torch.tensor(in_random_order(chance, n), dtype=dtype or torch.int64, device=device)
        return order if out is None else out.resize_(n).copy_(order)

    def multinomial(
        weights: Tensor, num_samples: int, replacement: bool = False, *, out: Tensor | None = None
    ) -> Tensor:
        def drawn(row: Tensor) -> list[int]:
            if replacement or num_samples == 1:
                return [drawn_one(chance.now.rng, row) for _ in range(num_samples)]
            return drawn_several(chance.now.rng, row, num_samples)

        _refuse_coarse("Draws by weights", weights.dtype)  # torch makes a race of noise of that dtype
        rows = [drawn(row.double()) for row in weights.reshape(-1, weights.shape[-1])]
        found = torch.tensor(rows, device=weights.device).reshape(*weights.shape[:-1], num_samples)
        return found if out is None else out.resize_(found.shape).copy_(found)

    def bernoulli(input: Tensor, p: float | None = None, *, out: Tensor | None = None) -> Tensor:
        chances = input if p is None else torch.full_like(input, p, dtype=torch.float64)
        if not bool(((chances >= 0) & (chances <= 1)).all()):
            raise RefusedWeights("Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
        hits = [float(chance.now.rng.accept(one)) for one in chances.reshape(-1).tolist()]
        found = torch.tensor(hits, dtype=input.dtype, device=input.device).reshape(input.shape)
        return found if out is None else out.resize_(found.shape).copy_(found)

    return {
        "rand": rand,
        "rand_like": rand_like,
        "randn": randn,
        "randn_like": randn_like,
        "normal": normal,
        "randint": randint,
        "randperm": randperm,
        "multinomial": multinomial,
        "bernoulli": bernoulli,
        **{name: refused(f"torch.{name}") for name in _NOT_FOLLOWED},
    }


def _of_tensors(chance: RunningChance) -> dict[str, Callable[..., Any]]:
    of_torch = _of_torch(chance)

    def uniform_(one: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
        grid = _grid_of(one.dtype)
        if low == 0 and high == 1:
            return written(one, _many(lambda: chance.now.uniform(*grid), one.shape))
        _refuse_coarse("Uniforms in another range than [0, 1)", one.dtype)
        return written(one, _many(lambda: low + (high - low) * chance.now.uniform(*grid), one.shape))

    def exponential_(one: Tensor, lambd: float = 1.0) -> Tensor:
        _grid_of(one.dtype)
        # Of every dtype torch draws them in float64, and rounds them then.
        return written(one, _many(lambda: chance.now.waiting_time(lambd), one.shape))

    def normal_(one: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
        _grid_of(one.dtype)
        _refuse_coarse("Normal numbers", one.dtype)
        return written(one, _many(lambda: mean + std * chance.now.normal(), one.shape))

    def bernoulli_(one: Tensor, p: Any = 0.5) -> Tensor:
        return one.copy_(of_torch["bernoulli"](torch.as_tensor(p, dtype=torch.float64).expand(one.shape)))

    return {
        "uniform_": uniform_,
        "exponential_": exponential_,
        "normal_": normal_,
        "bernoulli_": bernoulli_,
        "bernoulli": of_torch["bernoulli"],
        "multinomial": of_torch["multinomial"],
        **{name: refused(f"Tensor.{name}") for name in _NOT_FOLLOWED_IN_PLACE},
    }


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
        with torch_randomness(rng, used=used), without_exits():
            try:
                returned = run()
            except CannotEnumerate:
                raise
            except Exception as error:
                fault = fault or f"raises ({in_plain_words(error)})"
                return RAISED
            return as_tokens(returned)

    law: dict[tuple[int, ...], float] = {}
    runs = 0
    for weight, text in enumerate_outcomes(once, budget=budget):
        law[text] = law.get(text, 0.0) + weight
        runs += 1
    expected = sum(weight * len(text) for text, weight in law.items() if text != RAISED)
    return JointLaw(law, expected, runs, fault)
