"""Random numbers in parts of tensors and in kept buffers, and seeds that are random numbers themselves."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.testing import CannotEnumerate, LawBroken, SamplerCase, prove_sampler, sampler_models
from tests.framework.foreign_samplers import residual
from tests.thorough import some_of

F64 = torch.float64
PLAIN = {"plain": sampler_models()["plain"]}
BUFFER, ROWS = torch.empty(3, dtype=F64), torch.zeros(2, 3, dtype=F64)


def judged(coins: Callable[[int], Any], *, race: Any = None) -> Callable[[SamplerCase], list[int]]:
    """Leviathan's sampler with the coins of a call, and a race for its last token."""

    def draw(weights: torch.Tensor) -> int:
        return int(torch.multinomial(weights, 1)) if race is None else race(weights)

    def sampler(case: SamplerCase) -> list[int]:
        tokens = case.draft_tokens.tolist()
        drawn = coins(len(tokens))
        for place, token in enumerate(tokens):
            target, draft = case.target_probs[place], case.draft_probs[place]
            if not drawn[place] < target[token] / draft[token]:
                return [*tokens[:place], draw(residual(target, draft))]
        return [*tokens, draw(case.target_probs[-1])]

    return sampler


def one_by_one(n: int) -> Any:
    coins = torch.empty(n, dtype=F64)
    for place in range(n):
        coins[place] = torch.rand((), dtype=F64)
    return coins


def row_by_row(n: int) -> Any:
    coins = torch.ones(2, n, dtype=F64)
    for row in coins:
        row.uniform_()
    return coins[1]


def first_ones(n: int) -> Any:
    coins = torch.ones(n + 3, dtype=F64)
    coins[:n].uniform_()
    return coins


def behind_a_mask(n: int) -> Any:
    coins = torch.ones(n + 1, dtype=F64)
    coins[torch.arange(n + 1) < n] = torch.rand(n, dtype=F64)
    return coins


def copied(n: int) -> Any:
    return torch.ones(n, dtype=F64).copy_(torch.rand(n, dtype=F64))


def multiplied(n: int) -> Any:
    coins = torch.ones(n, dtype=F64)
    coins.view(1, n).mul_(torch.rand(n, dtype=F64))
    return coins


def kept_buffer(n: int) -> Any:
    return BUFFER.uniform_()


def row_of_a_kept_buffer(n: int) -> Any:
    ROWS[1].uniform_()
    return ROWS[1]


def out(n: int) -> Any:
    return torch.rand(3, out=BUFFER)


COINS: dict[str, Callable[[int], Any]] = {
    coins.__name__: coins
    for coins in (
        one_by_one,
        row_by_row,
        first_ones,
        behind_a_mask,
        copied,
        multiplied,
        kept_buffer,
        row_of_a_kept_buffer,
        out,
    )
}


@pytest.mark.parametrize("name", some_of(COINS, {"one_by_one", "row_by_row", "row_of_a_kept_buffer"}))
def test_numbers_that_are_written_into_a_tensor_are_enumerated(name: str) -> None:
    coins = COINS[name]
    assert prove_sampler(judged(coins), models=PLAIN).error < 1e-11
    with pytest.raises(LawBroken):
        prove_sampler(judged(lambda n: 0.97 * coins(n)), models=PLAIN)
    assert type(BUFFER) is type(ROWS) is torch.Tensor
    assert BUFFER.uniform_().max() > 0  # torch's own again


def test_noise_of_one_request_in_a_row_of_a_batch_is_enumerated() -> None:
    def race(weights: torch.Tensor) -> int:
        noise = torch.empty(2, len(weights), dtype=F64)
        for row in range(2):
            noise[row].exponential_()
        return int((weights / noise).argmax(-1)[1])

    assert prove_sampler(judged(one_by_one, race=race), models=PLAIN).error < 1e-11


CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "an entry": lambda coins: coins[0].mul_(0.97),
    "a part": lambda coins: coins.view(-1)[:1].sub_(0.03),
    "the same dtype": lambda coins: coins.double().mul_(0.97),
    "numpy": lambda coins: coins.numpy().__imul__(0.97),
}


@pytest.mark.parametrize("name", some_of(CHANGES, {"an entry", "the same dtype"}))
def test_a_change_of_a_part_of_drawn_numbers_counts(name: str) -> None:
    def coins(n: int) -> torch.Tensor:
        drawn = torch.rand(n, dtype=F64)
        CHANGES[name](drawn)
        return drawn

    with pytest.raises(LawBroken):
        prove_sampler(judged(coins), models=PLAIN)


def test_a_change_of_a_copy_does_not_count() -> None:
    def coins(n: int) -> torch.Tensor:
        drawn = torch.rand(n, dtype=F64)
        for copy in (drawn.clone(), drawn[torch.arange(n)], drawn.to(F64, copy=True), drawn.float()):
            copy.mul_(0.5)
        return drawn

    assert prove_sampler(judged(coins), models=PLAIN).error < 1e-11


SEEDED: dict[str, Callable[[], Any]] = {
    "default_rng": lambda: np.random.default_rng(secrets.randbits(128)).random,
    "a request's default_rng": lambda: np.random.default_rng([secrets.randbits(64), 3]).random,
    "RandomState": lambda: np.random.RandomState(np.random.randint(2**31 - 1)).random_sample,
    "Philox": lambda: np.random.Generator(np.random.Philox(key=secrets.randbits(64))).random,
    "Random": lambda: random.Random(random.random()).random,
    "random.seed": lambda: (random.seed(), random.random)[1],
    "numpy's seed": lambda: (np.random.seed(None), np.random.rand)[1],
    "torch.seed": lambda: (torch.seed(), lambda: torch.rand((), dtype=F64))[1],
}


@pytest.mark.parametrize("name", some_of(SEEDED, {"default_rng", "Philox", "Random", "torch.seed"}))
def test_a_generator_with_a_random_seed_is_chance(name: str) -> None:
    def coins(n: int) -> list[Any]:
        coin = SEEDED[name]()
        return [coin() for _ in range(n)]

    assert prove_sampler(judged(coins), models=PLAIN).error < 1e-9


def test_two_generators_with_one_random_seed_give_no_verdict() -> None:
    def coins(n: int) -> list[Any]:
        seed = secrets.randbits(64)
        return [random.Random(seed).random() for _ in range(n)]

    with pytest.raises(CannotEnumerate, match="used again"):
        prove_sampler(judged(coins), models=PLAIN)


@pytest.mark.parametrize("seed", [4, lambda: random.randrange(1000), lambda: os.urandom(8)])
def test_a_seed_that_may_repeat_gives_no_verdict(seed: Any) -> None:
    def coins(n: int) -> list[Any]:
        generator = random.Random(seed() if callable(seed) else seed)
        return [generator.random() for _ in range(n)]

    with pytest.raises(CannotEnumerate, match="is made with a seed inside the call"):
        prove_sampler(judged(coins), models=PLAIN)
