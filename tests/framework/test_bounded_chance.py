"""A proof takes a bounded time: past it there is no verdict, and a known verdict has no name."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable

import numpy as np
import pytest
import torch

from draftwood import InvalidInput
from draftwood.testing import CannotEnumerate, LawBroken, SamplerCase, measure_sampler, prove_sampler
from draftwood.testing.samplers import cpu_limits, sampler_proof
from draftwood.testing.samplers.lazy_numbers import LazyChance
from tests.framework.test_odd_samplers import FEW, PLAIN, leviathan
from tests.framework.test_testing_chance import law_of


def permuted(case: SamplerCase) -> list[int]:
    """A right sampler, each of whose coins is one of four in a random order: 24 outcomes for each order."""

    def rejects(_: int, token: int, target: torch.Tensor, draft: torch.Tensor) -> bool:
        coins = torch.rand(4, dtype=torch.float64)[torch.randperm(4)]
        return bool(coins[0] * draft[token] >= target[token])

    return leviathan(case, rejects=rejects)


def test_an_enumeration_that_takes_too_long_is_told_in_time() -> None:
    begin = time.process_time()
    with pytest.raises(
        CannotEnumerate, match=r"more than 1 CPU seconds to list.*samples=.*more than cpu_seconds=1.5"
    ):
        prove_sampler(permuted, cpu_seconds=1.5)
    assert time.process_time() - begin < 5


def test_given_uniforms_are_bounded_too() -> None:
    def slow(case: SamplerCase) -> list[int]:
        time.sleep(0)
        torch.ones(200, 200) @ torch.ones(200, 200)
        return [int(case.uniforms[0] * 3)]

    with pytest.raises(CannotEnumerate, match="CPU seconds"):
        prove_sampler(slow, uniforms=3, cpu_seconds=0.1)


def test_a_verdict_stays_where_no_time_is_left_to_name_the_mistake(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(_: object) -> None:
        raise CannotEnumerate("no time")

    monkeypatch.setattr(cpu_limits.CpuLimit, "check_naming", never)
    with pytest.raises(LawBroken, match="is biased") as broken:
        prove_sampler(lambda case: leviathan(case, left=lambda _, __, target, ___: target), models=FEW)
    assert not broken.value.likely


def test_few_of_many_outcomes_are_run_twice() -> None:
    made = 0

    def in_order(case: SamplerCase) -> list[int]:
        nonlocal made
        made += 1
        coins = torch.rand(5, dtype=torch.float64)[torch.randperm(5)]
        return leviathan(case, rejects=lambda i, token, t, d: bool(coins[i] * d[token] >= t[token]))

    report = measure_sampler(in_order, models=PLAIN)
    assert report.verdict == "lossless"
    assert report.calls > 3000
    assert made < 1.6 * report.calls


def of_numpy() -> int:
    held = np.zeros(1, np.int8)
    held[0] = random.random() * 100
    return int(held[0])


@pytest.mark.parametrize(
    "rounded",
    [
        lambda: int(random.random() * 100),
        lambda: int((torch.rand((), dtype=torch.float64) * 100).to(torch.int8)),
        of_numpy,
    ],
)
def test_a_whole_number_is_found_in_few_choices(
    rounded: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verdicts on percents took 13 seconds: each outcome asked for up to 100 comparisons in turn."""
    asked: list[int] = []
    below = LazyChance.below
    monkeypatch.setattr(LazyChance, "below", lambda *given: (asked.append(1), below(*given))[1])
    law = law_of(rounded)
    assert len(asked) <= 7 * 100
    assert law == pytest.approx(dict.fromkeys(range(100), 0.01), abs=1e-9)


def test_no_mistake_is_sought_where_rounding_is_the_only_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """To name the mistake of a right sampler that rounds to float32 took 5 of 6 CPU seconds."""

    def seeks(*_: object) -> str:
        raise AssertionError("it names a mistake")

    monkeypatch.setattr(sampler_proof, "likely_mistake", seeks)

    def rejects(_: int, token: int, target: torch.Tensor, draft: torch.Tensor) -> bool:
        return bool(torch.rand((), dtype=torch.float64) >= (target[token] / draft[token]).float())

    report = measure_sampler(functools.partial(leviathan, rejects=rejects), models=FEW)
    assert report.verdict == "lossless"
    assert 1e-9 < report.error < 1e-6


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan")])
def test_a_proof_without_time_is_refused(seconds: float) -> None:
    with pytest.raises(InvalidInput, match="cpu_seconds is .*; give a number above 0"):
        prove_sampler(lambda case: case.draft_tokens, cpu_seconds=seconds)
