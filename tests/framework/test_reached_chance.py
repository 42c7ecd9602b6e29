"""Numbers that no draw reaches, generators that are kept, and the points at which comparisons turn."""

from __future__ import annotations

import random
import sys
from types import ModuleType

import numpy as np
import pytest
import torch

from draftwood.testing import LawBroken, prove_sampler
from draftwood.testing.samplers.turning_points import turning_point
from tests.framework.test_testing_chance import PLAIN, law_of, leviathan

WEIGHTS = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: int(np.argmax(np.log(WEIGHTS.numpy() + 1e-300) + np.random.gumbel(size=3))),
        lambda: int(((WEIGHTS + 1e-30) / torch.empty_like(WEIGHTS).exponential_()).argmax()),
        lambda: int((WEIGHTS.clamp(min=1e-20).log() - torch.rand_like(WEIGHTS).log().neg().log()).argmax()),
        lambda: int((WEIGHTS + 1e-30).div(torch.empty_like(WEIGHTS).exponential_()).topk(2)[1][0]),
        lambda: int(torch.multinomial(WEIGHTS + 1e-40, 1)),
        lambda: random.choices(range(3), (WEIGHTS + 1e-40).tolist())[0],
        lambda: int(np.random.choice(3, p=((WEIGHTS + 1e-40) / 4).numpy())),
    ],
)
def test_a_weight_that_no_draw_reaches_is_no_outcome(draw) -> None:
    assert law_of(draw) == pytest.approx({1: 0.25, 2: 0.75}, abs=1e-15)


def test_a_weight_that_draws_reach_is_an_outcome() -> None:
    rare = law_of(lambda: int(torch.multinomial(WEIGHTS + 1e-12, 1)))
    assert rare[0] == pytest.approx(1e-12 / 4, rel=1e-6)


@pytest.mark.parametrize(
    "made", [lambda: random.Random(), lambda: np.random.default_rng(), lambda: np.random.RandomState()]
)
@pytest.mark.parametrize("numba", [False, True])
def test_a_generator_that_the_first_call_makes_is_chance_in_all_calls(made, numba, monkeypatch) -> None:
    """With numba there, which compiles functions at their first call, that call is an ordinary one."""
    kept: list = []
    monkeypatch.delitem(sys.modules, "numba", raising=False)
    if numba:
        monkeypatch.setitem(sys.modules, "numba", ModuleType("numba"))

    def coin():
        kept[:] = kept or [made()]
        return kept[0].uniform(0, 1)

    assert prove_sampler(leviathan(coin=coin), models=PLAIN).error < 1e-11
    with pytest.raises(LawBroken):
        prove_sampler(leviathan(coin=lambda: 0.9 * coin()), models=PLAIN)


@pytest.mark.parametrize("number", [lambda point: point / 2**53, lambda point: 1 - point / 2**53])
def test_few_points_are_tried_where_a_comparison_turns(number) -> None:
    tried: list[float] = []
    rising = number(0) < number(1)
    for height in (0.0, 1e-17, 1e-9, 0.3, 2 / 3, 1 - 2**-53, 1.0):

        def before(value: float, height: float = height) -> bool:
            tried.append(value)
            return (value < height) == rising

        point = turning_point(number, 0, 2**53, before)
        tried.clear()
        assert turning_point(number, 0, 2**53, before, height) == point
        assert len(tried) <= (12 if 0.1 < height < 0.9 else 60)


@pytest.mark.parametrize(
    "rounded",
    [
        lambda: round(random.random(), 1),
        lambda: np.round(np.random.random(), 1),
        lambda: np.round(np.random.random(), decimals=1),
        lambda: torch.rand((), dtype=torch.float64).round(decimals=1),
        lambda: torch.round(10 * torch.rand((), dtype=torch.float64)) / 10,
    ],
)
def test_a_number_that_is_rounded_is_enumerated(rounded) -> None:
    assert law_of(lambda: bool(rounded() <= 0.31)) == pytest.approx({True: 0.35, False: 0.65}, abs=1e-15)
    assert law_of(lambda: round(2 * random.random())) == pytest.approx({0: 0.25, 1: 0.5, 2: 0.25}, abs=1e-15)
