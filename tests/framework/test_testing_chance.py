"""Sources of chance that a foreign sampler may draw from: each is enumerated exactly, or told as unseen."""

from __future__ import annotations

import gc
import itertools
import math
import random
import re
import secrets
import time
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from draftwood import InvalidInput
from draftwood.testing import measure_sampler, prove_sampler, sampler_models
from draftwood.testing.diagnosis.intervals import CannotEnumerate, UnseenChance
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.testing.samplers.sampler_runs import CheckedSampler
from draftwood.testing.samplers.torch_randomness import torch_randomness

PLAIN = {"plain": sampler_models()["plain"]}

# Looked up when they draw, as nearly all code does.
COINS = {
    "torch.rand": lambda: torch.rand((), dtype=torch.float64),
    "torch.rand of one": lambda: torch.rand(1, dtype=torch.float64)[0],
    "its item": lambda: torch.rand(1, dtype=torch.float64).item(),
    "rand_like": lambda: torch.rand_like(torch.zeros((), dtype=torch.float64)),
    "uniform_": lambda: torch.empty((), dtype=torch.float64).uniform_(),
    "in place, on what is returned not": lambda: (
        coin := torch.empty(1, dtype=torch.float64),
        coin.uniform_(),
        coin[0],
    )[2],
    "exponential_": lambda: 1 - (-torch.empty((), dtype=torch.float64).exponential_()).exp(),
    "randn": lambda: torch.special.ndtr(torch.randn((), dtype=torch.float64)),
    "randint": lambda: torch.randint(0, 2**40, ()).double() / 2**40,
    "distributions.Uniform": lambda: torch.distributions.Uniform(0.0, 1.0).sample().double(),
    "float32": lambda: torch.rand(()),
    "1 - u": lambda: 1 - torch.rand((), dtype=torch.float64),
    "random.random": lambda: random.random(),
    "random.uniform": lambda: random.uniform(0.0, 1.0),
    "exp of -expovariate": lambda: math.exp(-random.expovariate(1.0)),
    "numpy.random.rand": lambda: np.random.rand(),
    "numpy.random.random, one of two": lambda: np.random.random(2)[1],
    "numpy.random.uniform": lambda: np.random.uniform(),
    "a new default_rng": lambda: np.random.default_rng().random(),
    "a new Generator": lambda: np.random.Generator(np.random.PCG64()).random(),
    "a new RandomState": lambda: np.random.RandomState().rand(),
    "a new random.Random": lambda: random.Random().random(),
    "a new SystemRandom": lambda: random.SystemRandom().random(),
    "secrets": lambda: secrets.randbelow(2**40) / 2**40,
    "getrandbits": lambda: random.getrandbits(40) / 2**40,
    "randrange with a step": lambda: random.randrange(0, 2**41, 2) / 2**41,
    "one of many": lambda: random.choice(range(2**40)) / 2**40,
    "torch.normal": lambda: torch.special.ndtr(torch.normal(torch.zeros((), dtype=torch.float64), 1.0)),
    "out=": lambda: (coin := torch.empty((), dtype=torch.float64), torch.rand((), out=coin), coin)[2],
}


def last_by_multinomial(weights: torch.Tensor) -> int:
    return int(torch.multinomial(weights, 1))


def by_exponential_race(weights: torch.Tensor) -> int:
    noise = torch.empty_like(weights).exponential_()
    return int(weights.div_(noise).argmax(dim=-1))


def by_inverse_race(weights: torch.Tensor) -> int:
    return int((weights * torch.empty_like(weights).exponential_().reciprocal()).argmax())


def by_gumbel_noise(weights: torch.Tensor) -> int:
    noise = -torch.log(-torch.log(torch.rand_like(weights).clamp_min(1e-20)))
    return int(torch.argmax(weights.log() + noise))


def by_numpy_gumbel(weights: torch.Tensor) -> int:
    with np.errstate(divide="ignore"):
        scores = np.log(weights.numpy())
    return int(np.argmax(scores + np.random.gumbel(size=len(weights))))


def by_heights(weights: torch.Tensor) -> int:
    heights = weights.cumsum(0)
    return int(torch.searchsorted(heights, torch.rand(1, dtype=torch.float64) * heights[-1], right=True))


def by_the_largest_of_a_race(weights: torch.Tensor) -> int:
    return int((weights / torch.empty_like(weights).exponential_()).max(dim=-1).indices)


def by_the_first_of_a_race(weights: torch.Tensor) -> int:
    return int((weights / torch.empty_like(weights).exponential_()).topk(1).indices)


def by_sorting_a_race(weights: torch.Tensor) -> int:
    return int((weights / torch.empty_like(weights).exponential_()).sort(descending=True).indices[0])


def by_numpy_multinomial(weights: torch.Tensor) -> int:
    return int(np.random.multinomial(1, (weights / weights.sum()).numpy()).argmax())


def by_counting(weights: torch.Tensor) -> int:
    heights = weights.cumsum(0) / weights.sum()
    return int((heights <= torch.rand((), dtype=torch.float64)).sum())


def by_categorical(weights: torch.Tensor) -> int:
    return int(torch.distributions.Categorical(probs=weights).sample())


def by_python(weights: torch.Tensor) -> int:
    return random.choices(range(len(weights)), weights=weights.tolist())[0]


def by_numpy(weights: torch.Tensor) -> int:
    return int(np.random.choice(len(weights), p=(weights / weights.sum()).numpy()))


LAST = (
    last_by_multinomial,
    by_exponential_race,
    by_inverse_race,
    by_gumbel_noise,
    by_numpy_gumbel,
    by_heights,
    by_counting,
    by_the_largest_of_a_race,
    by_the_first_of_a_race,
    by_sorting_a_race,
    by_numpy_multinomial,
    by_categorical,
    by_python,
    by_numpy,
)


def leviathan(coin=COINS["torch.rand"], last=last_by_multinomial, rest=True):
    """Leviathan's sampler over a source of coins and a way to draw a token; without `rest` a wrong one."""

    def sampler(case):
        for index, token in enumerate(case.draft_tokens.tolist()):
            target, draft = case.target_probs[index], case.draft_probs[index]
            if not (coin() < target[token] / draft[token]):
                left = (target - draft).clamp(min=0) if rest else target.clone()
                return [*case.draft_tokens[:index].tolist(), last(left)]
        return [*case.draft_tokens.tolist(), last(case.target_probs[-1].clone())]

    return sampler


@pytest.mark.parametrize("name", COINS)
def test_a_source_of_coins_is_enumerated(name: str) -> None:
    report = prove_sampler(leviathan(coin=COINS[name]), models=PLAIN)
    assert report.error < (1e-6 if name in ("float32", "distributions.Uniform") else 1e-11)
    with pytest.raises(LawBroken):
        prove_sampler(leviathan(coin=COINS[name], rest=False), models=PLAIN)


@pytest.mark.parametrize("last", LAST, ids=lambda last: last.__name__)
def test_a_way_to_draw_a_token_is_enumerated(last) -> None:
    assert prove_sampler(leviathan(last=last), models=PLAIN).error < 1e-9
    with pytest.raises(LawBroken):
        prove_sampler(leviathan(last=last, rest=False), models=PLAIN)


UNSEEN = {
    "random.Random that exists already": random.Random(0).random,
    "Python's own generator by random": random.random,
    "numpy's own generator": np.random.rand,
    "numpy.random.Generator that exists already": np.random.default_rng(0).random,
    "numpy.random.RandomState that exists already": np.random.RandomState(5).rand,
    "torch's own generator by binomial": lambda one=torch.binomial: float(
        one(torch.tensor(1e6), torch.tensor(0.5)) / 1e6
    ),
    "the system's entropy (urandom": random.SystemRandom().random,
    "a clock (perf_counter_ns)": lambda: time.perf_counter_ns() % 1000 / 1000,
    "an object's address (id)": lambda: id(object()) // 16 % 64 / 64,
}


@pytest.mark.parametrize("name", UNSEEN)
def test_a_source_that_is_not_seen_is_named_and_gives_no_verdict(name: str) -> None:
    gc.unfreeze()  # the suite hides what was made at its start, these generators too
    with pytest.raises(UnseenChance, match=re.escape(name) + ".*give samples="):
        prove_sampler(leviathan(coin=UNSEEN[name]), models=PLAIN)


def test_a_source_that_is_not_seen_is_proved_by_samples() -> None:
    report: Any = measure_sampler(leviathan(coin=random.Random(0).random), models=PLAIN, samples=2000)
    assert report.p_value > 1e-6


def test_an_unseen_coin_that_fell_alike_twice_gives_no_verdict() -> None:
    with pytest.raises(UnseenChance):
        prove_sampler(leviathan(coin=np.random.RandomState(0).rand), models=PLAIN)


def test_an_unseen_coin_that_fell_alike_until_a_verdict_is_named(monkeypatch) -> None:
    told: list[bool] = []
    look_again = CheckedSampler.look_again

    def looked(self, possible) -> None:
        told.append(True)
        look_again(self, possible)

    monkeypatch.setattr(CheckedSampler, "look_again", looked)
    with pytest.raises(UnseenChance, match=r"a clock \(perf_counter_ns\).*give samples="):
        prove_sampler(
            leviathan(coin=lambda: time.perf_counter_ns() % 1000 / 1000 if told else 0.5), models=PLAIN
        )


def test_an_unseen_coin_that_falls_otherwise_only_in_ordinary_calls_is_named(monkeypatch) -> None:
    told, numbers = list[bool](), itertools.count()
    compare = CheckedSampler.compare_with_calls

    def compared(self, *args) -> None:
        told.append(True)
        compare(self, *args)

    monkeypatch.setattr(CheckedSampler, "compare_with_calls", compared)
    with pytest.raises(UnseenChance, match=r"an object's address \(id\).*give samples="):
        prove_sampler(
            leviathan(coin=lambda: (id(object()), next(numbers) % 4 / 4 if told else 0.5)[1]), models=PLAIN
        )


def test_an_address_that_is_free_again_in_every_run_gives_no_verdict(monkeypatch) -> None:
    """Until a verdict nothing else takes an address, so that the coin falls alike."""
    told, look_again, first = list[bool](), CheckedSampler.look_again, id(object())

    def looked(self, possible) -> None:
        told.append(True)
        look_again(self, possible)

    monkeypatch.setattr(CheckedSampler, "look_again", looked)
    with pytest.raises(UnseenChance, match="give samples="):
        prove_sampler(leviathan(coin=lambda: (id(object()) if told else first) // 16 % 64 / 64), models=PLAIN)


KEPT_BY_PYTHON = random.Random(0)


def test_unseen_chance_beside_given_uniforms_gives_no_verdict() -> None:
    def sampler(case):
        return leviathan(coin=KEPT_BY_PYTHON.random)(case)

    with pytest.raises(UnseenChance):
        prove_sampler(sampler, models=PLAIN, uniforms=3)


@pytest.mark.parametrize(
    "coin",
    [
        lambda: torch.rand((), dtype=torch.float64) ** 2,
        lambda: float(torch.rand((), dtype=torch.float64)),
        lambda: torch.rand((), dtype=torch.float64) * torch.rand((), dtype=torch.float64),
        lambda: torch.rand(3, dtype=torch.float64).sort().values[0],
        lambda: random.betavariate(1, 1),
        lambda: np.random.default_rng(0).random(),
        lambda: np.random.RandomState(seed=3).rand(),
        lambda: np.random.Generator(np.random.Philox(key=3)).random(),
        lambda: random.Random(3).random(),
        lambda: stats.norm.cdf(random.gauss(0, 1)),
        lambda: random.sample(range(64), 64)[0] / 64,
        lambda: torch.from_numpy(np.random.rand(1))[0],
        lambda: torch.rand((), dtype=torch.float64, names=None),  # type: ignore[call-overload]
        lambda: random.paretovariate(1.0),
        lambda: np.random.laplace(),
    ],
)
def test_what_cannot_be_followed_gives_no_verdict(coin) -> None:
    with pytest.raises(CannotEnumerate, match="samples="):
        prove_sampler(leviathan(coin=coin), models=PLAIN)


def inverse(weights: torch.Tensor, u: float) -> int:
    possible = weights.nonzero().flatten()
    sums = (weights / weights.sum()).cumsum(0)[possible]
    return int(possible[min(int((u >= sums).sum()), len(possible) - 1)])


def by_alias(weights: torch.Tensor, u: float) -> int:
    """The alias method by one uniform: its place in a cell decides within the cell."""
    count = len(weights)
    shares = (weights / weights.sum() * count).tolist()
    others, small = [0] * count, [token for token in range(count) if shares[token] < 1]
    large = [token for token in range(count) if shares[token] >= 1]
    while small and large:
        one, other = small.pop(), large[-1]
        others[one] = other
        shares[other] -= 1 - shares[one]
        if shares[other] < 1:
            small.append(large.pop())
    cell = min(int(u * count), count - 1)
    full = u * count - cell < shares[cell] or cell in [*small, *large]
    return cell if full else others[cell]


@pytest.mark.parametrize(
    "draw",
    [by_alias, *[lambda w, u, shift=shift: inverse(w, (u + shift) % 1) for shift in (0.05, 0.1, 0.37, 0.62)]],
)
def test_right_samplers_whose_pieces_are_missed_get_no_verdict(draw) -> None:
    def sampler(case):
        tests = iter(case.uniforms[:-1].tolist())
        last = float(case.uniforms[-1])
        return leviathan(coin=lambda: next(tests), last=lambda weights: draw(weights, last))(case)

    try:
        report = prove_sampler(sampler, uniforms=3)
    except CannotEnumerate as error:
        assert "samples=" in str(error)  # noqa: PT017  # either is right
    else:
        assert report.error < 1e-9


def test_an_error_of_the_machine_gives_no_verdict() -> None:
    def sampler(case):
        raise RuntimeError("Cannot get CUDA generator without ATen_cuda library.")

    if not torch.cuda.is_available():
        with pytest.raises(InvalidInput, match="a device that this machine does not have"):
            prove_sampler(sampler, models=PLAIN)


def test_an_error_that_the_sampler_makes_by_itself_is_its_fault() -> None:
    def sampler(case):
        return [int(torch.rand(()) < 0.5) + "1"]  # type: ignore[operator]

    with pytest.raises(LawBroken, match="raises .TypeError"):
        prove_sampler(sampler, models=PLAIN)


def seeded_inside():
    return torch.rand((), dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def made_inside():
    return torch.rand((), dtype=torch.float64, generator=torch.Generator())


def seeded_again():
    return torch.rand((), dtype=torch.float64, generator=KEPT.manual_seed(0))


def set_back():
    KEPT.set_state(BEGIN)
    return torch.empty((), dtype=torch.float64).uniform_(generator=KEPT)


def torch_seeded():
    torch.manual_seed(0)
    return torch.rand((), dtype=torch.float64)


def python_seeded():
    random.seed(0)
    return random.random()


def numpy_seeded():
    np.random.seed(0)
    return np.random.rand()


KEPT = torch.Generator().manual_seed(0)
BEGIN = KEPT.get_state()


@pytest.mark.parametrize(
    "coin",
    [seeded_inside, made_inside, seeded_again, set_back, torch_seeded, python_seeded, numpy_seeded],
    ids=lambda coin: coin.__name__,
)
def test_a_seed_inside_the_call_gives_no_verdict(coin) -> None:
    # As callers do before they prove something: the state inside the call is then that of before.
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    with pytest.raises(CannotEnumerate, match="samples="):
        prove_sampler(leviathan(coin=coin), models=PLAIN)


def test_a_generator_that_was_seeded_outside_is_chance() -> None:
    kept = torch.Generator().manual_seed(0)
    coin = lambda: torch.rand((), dtype=torch.float64, generator=kept)  # noqa: E731

    def last(weights):
        return int(torch.multinomial(weights, 1, generator=kept))

    assert prove_sampler(leviathan(coin=coin, last=last), models=PLAIN).error < 1e-11


def law_of(draw) -> dict:
    """The law of what `draw` returns."""

    def run(rng):
        with torch_randomness(rng):
            return draw()

    law: dict = {}
    for weight, outcome in enumerate_outcomes(run):
        law[outcome] = law.get(outcome, 0.0) + weight
    return law


def test_laws_of_numbers() -> None:
    assert law_of(lambda: random.randint(1, 4)) == pytest.approx(dict.fromkeys(range(1, 5), 0.25))
    assert law_of(lambda: int(torch.randint(3, (1,)))) == pytest.approx(dict.fromkeys(range(3), 1 / 3))
    assert law_of(lambda: int(np.random.randint(3))) == pytest.approx(dict.fromkeys(range(3), 1 / 3))
    assert law_of(lambda: int(random.random() * 5)) == pytest.approx(dict.fromkeys(range(5), 0.2))
    assert law_of(lambda: math.floor(5 * np.random.rand())) == pytest.approx(dict.fromkeys(range(5), 0.2))
    assert law_of(lambda: (2 * torch.rand(())).long().item()) == pytest.approx({0: 0.5, 1: 0.5})
    hit = law_of(lambda: bool(torch.bernoulli(torch.tensor([0.3]))[0] > 0))
    assert hit == pytest.approx({True: 0.3, False: 0.7}, abs=1e-7)
    cut = law_of(lambda: bool(torch.randn((), dtype=torch.float64) < 1))
    assert cut[True] == pytest.approx(stats.norm.cdf(1), abs=1e-14)
    waited = law_of(lambda: bool(np.random.exponential(2.0) > 1.0))
    assert waited[True] == pytest.approx(math.exp(-0.5), abs=1e-14)
    several = law_of(lambda: tuple(torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 2).tolist()))
    assert several[0, 1] == pytest.approx(0.5 * 0.3 / 0.5, abs=1e-7)
    race = law_of(lambda: int((torch.tensor([1.0, 2.0, 0.0]) / torch.empty(3).exponential_()).argmax(-1)))
    assert race == pytest.approx({0: 1 / 3, 1: 2 / 3})


def test_a_number_that_won_a_race_is_not_used_again() -> None:
    def draw():
        noise = torch.empty(2).exponential_()
        return int(noise.argmin()), bool(noise[0] < 1)

    with pytest.raises(CannotEnumerate, match="used again"):
        law_of(draw)
