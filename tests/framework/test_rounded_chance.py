"""Random numbers that bounds, coarse floats or integers change: followed exactly, or told as not followed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.testing import CannotEnumerate, LawBroken, prove_sampler, sampler_models
from tests.framework.test_testing_chance import law_of
from tests.framework.test_written_chance import judged

F64, F32, BF16, HALF = torch.float64, torch.float32, torch.bfloat16, torch.float16
PLAIN = {"plain": sampler_models()["plain"]}
WEIGHTS = torch.tensor([0.6, 0.3, 0.1], dtype=F64)
Change = Callable[[torch.Tensor], torch.Tensor]


def same(x: torch.Tensor) -> torch.Tensor:
    return x


# Each form of noise as a function of uniforms, and the place that wins with it.
RACES: dict[str, tuple[Change, Callable[[torch.Tensor], torch.Tensor]]] = {
    "uniform": (same, lambda u: (WEIGHTS.log() - (-u.log()).log()).argmax()),
    "1 - uniform": (lambda u: 1 - u, lambda u: (WEIGHTS.log() - (-u.log()).log()).argmax()),
    "log uniform": (torch.log, lambda x: (WEIGHTS.log() - (-x).log()).argmax()),
    "time": (lambda u: -u.log(), lambda x: (WEIGHTS / x).argmax()),
    "minus time": (lambda u: u.log(), lambda x: (x / WEIGHTS).argmax()),
    "scaled time": (lambda u: -u.log() / WEIGHTS * 1e-6, lambda x: x.argmin()),
    "inverse": (lambda u: WEIGHTS / -u.log(), lambda x: x.argmax()),
    "log time": (lambda u: (-u.log()).log(), lambda x: (WEIGHTS.log() - x).argmax()),
    "Gumbel": (lambda u: -(-u.log()).log(), lambda x: (WEIGHTS.log() + x).argmax()),
}
BOUNDS: tuple[tuple[float | None, float | None], ...] = (
    (1e-20, None),
    (0.0, None),
    (1e-6, None),
    (0.1, None),
    (-20.0, None),
    (-1.0, None),
    (None, 0.5),
    (None, 100.0),
    (-100.0, 1e9),
    (1e-10, 1 - 1e-10),
)
MIDDLES = (torch.arange(100_000, dtype=F64) + 0.5) / 100_000


@pytest.mark.parametrize(("low", "high"), BOUNDS)
@pytest.mark.parametrize("form", RACES)
def test_noise_within_bounds_that_change_it_is_no_race(
    form: str, low: float | None, high: float | None
) -> None:
    noise, won = RACES[form]
    values = noise(MIDDLES.unsqueeze(1).expand(-1, 3))
    changes = bool((values.clamp(low, high) != values).any())

    def draw() -> int:
        return int(won(noise(torch.rand(3, dtype=F64)).clamp(low, high)))

    if changes:
        with pytest.raises(CannotEnumerate, match="samples="):
            law_of(draw)
    else:
        assert law_of(draw) == pytest.approx(dict(enumerate(WEIGHTS.tolist())))


@pytest.mark.parametrize(("low", "high"), [(0.0, None), (0.2, 0.7), (None, 0.5)])
@pytest.mark.parametrize("form", ["uniform", "time", "log time", "Gumbel"])
def test_noise_within_bounds_is_compared_exactly(form: str, low: float | None, high: float | None) -> None:
    noise = RACES[form][0]
    for below in (0.0, 0.3, 0.5, 0.7):
        found = law_of(lambda below=below: bool(noise(torch.rand(1, dtype=F64)).clamp(low, high) <= below))
        share = float((noise(MIDDLES).clamp(low, high) <= below).double().mean())
        assert found.get(True, 0.0) == pytest.approx(share, abs=2e-5)


GRIDS = {BF16: 2**8, HALF: 2**11}
OF_COARSE: dict[str, Change] = {
    "itself": same,
    "log": torch.log,
    "log, log": lambda u: -(-u.log()).log(),
    "exp": torch.exp,
    "sqrt": torch.sqrt,
    "log1p": lambda u: torch.log1p(-u),
    "sigmoid": lambda u: (4 * u).sigmoid(),
    "1 - u": lambda u: 1 - u,
    "times a number": lambda u: u * 0.3,
    "times a number of float32": lambda u: u * torch.tensor(0.3),
    "times a row of its dtype": lambda u: u * torch.full((1,), 0.3, dtype=u.dtype),
    "times a row of float32": lambda u: u * torch.full((1,), 0.3),
    "plus": lambda u: u + 0.37,
    "over": lambda u: u / 0.7,
    "under": lambda u: 0.7 / (u + 0.5),
    "clamped": lambda u: u.clamp(0.303, 0.6),
    "clamped by 1e-10": lambda u: u.clamp(min=1e-10),
    "rounded": lambda u: (10 * u).round() / 10,
    "in place": lambda u: u.mul_(0.7).add_(0.1),
    "in place, of float32": lambda u: u.mul_(torch.full((1,), 0.3)),
    "chosen": lambda u: torch.where(torch.ones(1, dtype=torch.bool), u, torch.ones(1)),
    "joined": lambda u: torch.cat([u, torch.ones(1, dtype=u.dtype)])[:1],
    "in float32": lambda u: u.float() * 0.3,
}


@pytest.mark.parametrize("dtype", GRIDS)
@pytest.mark.parametrize("name", OF_COARSE)
def test_coarse_uniforms_are_computed_with_as_torch_does(name: str, dtype: torch.dtype) -> None:
    change, points = OF_COARSE[name], GRIDS[dtype]
    every = torch.cat([change((torch.full((1,), k / points)).to(dtype)) for k in range(points)])
    for below in every.double().quantile(torch.tensor([0.2, 0.7], dtype=F64)).tolist():
        found = law_of(lambda below=below: bool(change(torch.rand(1, dtype=dtype)).double() <= below))
        assert found.get(True, 0.0) == pytest.approx(float((every.double() <= below).double().mean()))


FINE = torch.arange(2**24) / 2**24
INTO: dict[str, Change] = {
    "to": lambda u: u.to(BF16),
    "half": lambda u: u.half(),
    "half after log": lambda u: u.log().half(),
    "float8": lambda u: u.to(torch.float8_e4m3fn).float(),
    "two roundings": lambda u: u.half().bfloat16(),
    "type_as": lambda u: u.type_as(torch.ones((), dtype=BF16)),
    "copy_": lambda u: torch.zeros(len(u), dtype=BF16).copy_(u),
    "in a view": lambda u: torch.zeros(len(u), dtype=BF16).view(1, -1)[0].copy_(u),
    "mul_": lambda u: torch.ones(len(u), dtype=BF16).mul_(u),
    "masked_fill": lambda u: torch.where(torch.ones(len(u), dtype=torch.bool), u, 0.0).to(BF16),
    "without dimensions": lambda u: u.bfloat16(),
    "int": lambda u: torch.zeros(len(u), dtype=torch.int32).copy_(10 * u),
    "an int's half": lambda u: torch.zeros(len(u), dtype=torch.int64).copy_(10 * u) * 0.5,
    "an int over 10": lambda u: torch.zeros(len(u), dtype=torch.int64).copy_(10 * u) / 10,
    "an int on both sides of 0": lambda u: torch.zeros(len(u), dtype=torch.int8).copy_(10 * u - 5),
    "bool": lambda u: u.to(torch.bool).float(),
    "out=": lambda u: torch.mul(u, 0.7, out=torch.zeros(len(u), dtype=BF16)),
    "log, out=": lambda u: torch.log(u, out=torch.zeros(len(u))),
    "lt_": lambda u: u.clone().lt_(0.3),
}


@pytest.mark.parametrize("name", INTO)
def test_uniforms_are_rounded_by_what_holds_them(name: str) -> None:
    every = INTO[name](FINE).double()
    for below in (-1.0, 0.0, 0.3, 0.501, 4.0):
        found = law_of(lambda below=below: bool(INTO[name](torch.rand(1)).double() <= below))
        assert found.get(True, 0.0) == pytest.approx(float((every <= below).double().mean()), abs=1e-7)


def test_an_entry_of_an_integer_buffer_is_truncated() -> None:
    def draw() -> bool:
        buffer = torch.zeros(2, dtype=torch.long)
        buffer[1] = 10 * torch.rand(())
        return bool(buffer[1] <= 4)

    assert law_of(draw) == pytest.approx({True: 0.5, False: 0.5})


NOISE: dict[str, Callable[[], Any]] = {
    "Gumbel noise of bfloat16": lambda: WEIGHTS.log() - (-torch.rand(3, dtype=BF16).log()).log(),
    "uniforms of bfloat16": lambda: WEIGHTS.log() - (-torch.rand(3, dtype=BF16).double().log()).log(),
    "exponential_ of float16": lambda: WEIGHTS / torch.empty(3, dtype=HALF).exponential_(),
    "scores in bfloat16": lambda: (WEIGHTS / torch.empty(3).exponential_()).bfloat16(),
    "scores in a buffer": lambda: torch.zeros(3, dtype=HALF).copy_(WEIGHTS / torch.empty(3).exponential_()),
    "noise through float8": lambda: WEIGHTS / torch.empty(3).exponential_().to(torch.float8_e5m2).float(),
}


@pytest.mark.parametrize("name", NOISE)
def test_a_race_of_coarse_noise_is_told_as_not_followed(name: str) -> None:
    with pytest.raises(CannotEnumerate, match="samples="):
        law_of(lambda: int(NOISE[name]().argmax()))


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.multinomial(WEIGHTS.bfloat16(), 1),
        lambda: torch.randn(3, dtype=HALF) < 1,
        lambda: torch.empty(1, dtype=BF16).uniform_(-1, 1) < 0,
        lambda: torch.zeros(1, dtype=torch.uint8).copy_(300 * torch.rand(1)) < 4,
        lambda: torch.rand(1).to(torch.float8_e5m2) < 0.5,
        lambda: torch.rand(1, dtype=torch.complex64).real < 0.5,
        lambda: torch.tensor([0.7], dtype=BF16) > random.random(),
        lambda: random.random() < np.float16(0.7),
        lambda: np.array([0.7], np.float16) > random.random(),
        lambda: torch.rand(1, dtype=HALF).numpy() * np.float16(0.3) < 0.2,
    ],
)
def test_other_coarse_chance_is_told_as_not_followed(draw: Callable[[], Any]) -> None:
    with pytest.raises(CannotEnumerate, match="samples="):
        law_of(lambda: bool(draw().sum() > 0))


@pytest.mark.parametrize(
    ("weights", "noise"),
    [(WEIGHTS.float(), F32), (WEIGHTS, F32), (WEIGHTS.float(), F64), (WEIGHTS.bfloat16(), F32)],
)
def test_a_race_of_float32_or_float64_is_followed(weights: torch.Tensor, noise: torch.dtype) -> None:
    right = (weights.double() / weights.double().sum()).tolist()
    race = law_of(lambda: int((weights / torch.empty(3, dtype=noise).exponential_()).argmax()))
    assert race == pytest.approx(dict(enumerate(right)), abs=1e-7)


COINS: dict[str, Callable[[], Any]] = {
    "cast": lambda: torch.rand(()).to(BF16),
    "in a buffer": lambda: torch.empty((), dtype=BF16).copy_(torch.rand(())),
    "percent in an integer buffer": lambda: torch.zeros(1, dtype=torch.int64).copy_(10 * torch.rand(1)) / 10,
}


@pytest.mark.parametrize("name", COINS)
def test_a_rounded_coin_is_biased(name: str) -> None:
    with pytest.raises(LawBroken):
        prove_sampler(judged(lambda n: [COINS[name]() for _ in range(n)]), models=PLAIN)


@pytest.mark.parametrize("cast", [torch.Tensor.float, torch.Tensor.double])
def test_a_coin_of_float32_is_right(cast: Change) -> None:
    assert prove_sampler(judged(lambda n: cast(torch.rand(n))), models=PLAIN).error < 1e-6


def below(numbers: Any, *bounds: float) -> tuple[bool, ...]:
    return tuple(bool(one < bound) for one, bound in zip(numbers, bounds, strict=True))


TWO = np.array([1.0, 2.0])
ARRAYS: dict[str, tuple[Callable[[], Any], float]] = {
    "uniform": (lambda: below(np.random.uniform(0, TWO), 0.5, 0.5), 0.5 * 0.25),
    "uniform of a generator": (lambda: below(np.random.default_rng().uniform(TWO, 3), 2, 2.5), 0.5 * 0.5),
    "exponential": (
        lambda: below(np.random.exponential(TWO), 0.5, 0.5),
        (1 - np.exp(-0.5)) * (1 - np.exp(-0.25)),
    ),
    "normal": (lambda: below(np.random.normal(TWO), 1.0, 2.0), 0.25),
    "gumbel": (lambda: below(np.random.gumbel(TWO), 1.0, 2.0), np.exp(-2)),
    "randint": (lambda: below(np.random.randint(0, [2, 4]), 1, 1), 0.125),
    "integers": (lambda: below(np.random.default_rng().integers([0, 1], 3), 1, 2), 1 / 6),
    "binomial": (lambda: below(np.random.binomial(1, [0.2, 0.6]), 1, 1), 0.8 * 0.4),
    "a size": (lambda: below(np.random.uniform(0, TWO, size=(1, 2))[0], 0.5, 0.5), 0.5 * 0.25),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_each_entry_of_numpys_parameters_has_its_number(name: str) -> None:
    draw, both = ARRAYS[name]
    assert law_of(draw)[True, True] == pytest.approx(both)


def test_arrays_of_numpys_parameters_make_a_race() -> None:
    right = dict(enumerate(WEIGHTS.tolist()))
    logits = np.log(WEIGHTS.numpy())
    assert law_of(lambda: int(np.random.gumbel(logits).argmax())) == pytest.approx(right)
    assert law_of(lambda: int(np.random.exponential(1 / WEIGHTS.numpy()).argmin())) == pytest.approx(right)


@pytest.mark.parametrize("chances", [[0.2, 0.3], [0.2, 0.3, 0.9], [0.2, 0.3, 0.5], [0.5, 0.5 + 1e-13, 0.0]])
def test_the_last_place_of_numpys_multinomial_has_the_rest(chances: list[float]) -> None:
    law = law_of(lambda: int(np.random.multinomial(1, chances).argmax()))
    right = np.append(chances[:-1], 1 - sum(chances[:-1]))
    assert [law.get(place, 0.0) for place in range(len(chances))] == pytest.approx(right.tolist(), abs=1e-12)


@pytest.mark.parametrize(
    ("draw", "kind"),
    [
        (lambda: np.random.multinomial(1, [0.5, 0.6, 0.1]), ValueError),
        (lambda: np.random.choice(2, p=[0.5, 0.6]), ValueError),
        (lambda: np.random.binomial(1, 1.5), ValueError),
        (lambda: np.random.exponential(-1.0), ValueError),
        (lambda: torch.bernoulli(torch.tensor([1.5])), RuntimeError),
        (lambda: torch.zeros(1).bernoulli_(-0.5), RuntimeError),
    ],
)
def test_what_numpy_and_torch_refuse_is_the_samplers_error(draw: Callable[[], Any], kind: type) -> None:
    for run in (draw, lambda: law_of(draw)):
        with pytest.raises(kind):
            run()
    with pytest.raises(LawBroken, match="raises"):
        prove_sampler(judged(lambda n: [draw()] * n), models=PLAIN)
