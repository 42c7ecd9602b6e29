"""Samplers by many sources of chance and ways to draw: right ones never fail, and wrong ones never pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.testing import CannotEnumerate, LawBroken, SamplerCase, prove_sampler, sampler_models
from tests.framework import foreign_coins, foreign_wholes
from tests.framework.foreign_coins import COINS
from tests.framework.foreign_draws import DRAWS
from tests.framework.foreign_races import RACES
from tests.framework.foreign_tests import TESTS
from tests.framework.foreign_wholes import WHOLES
from tests.thorough import some_of

PLAIN = {"plain": sampler_models()["plain"]}
WAYS = {draw.__name__: draw for draw in (*DRAWS, *RACES)}


def leviathan(
    kept: Callable[[Tensor, Tensor], Any] = lambda p, q: torch.rand((), dtype=torch.float64) < p / q,
    draw: Callable[[Tensor], int] = lambda weights: int(torch.multinomial(weights, 1)),
) -> Any:
    """Leviathan's sampler by a test of a drafted token's probabilities and a way to draw the last token."""

    def sampler(case: SamplerCase) -> list[int]:
        tokens = case.draft_tokens.tolist()
        for place, token in enumerate(tokens):
            target, draft = case.target_probs[place], case.draft_probs[place]
            if not kept(target[token], draft[token]):
                return [*tokens[:place], draw((target - draft).clamp(min=0))]
        return [*tokens, draw(case.target_probs[-1].clone())]

    return sampler


def verdict(sampler: Any) -> str:
    """Returns "proved", "broken", or "none" where the prover says that it cannot tell, and what helps."""
    try:
        prove_sampler(sampler, models=PLAIN)
    except LawBroken:
        return "broken"
    except CannotEnumerate as refusal:
        return "none" if "samples=" in str(refusal) else "broken"
    return "proved"


@pytest.mark.parametrize(
    "name",
    some_of(
        COINS,
        {
            "random.choice of many",
            "numbers kept for later calls",
            "a guard with a fallback",
            "asked for its kind",
            "a pickled generator",
            "a file of entropy",
        },
    ),
)
def test_a_coin(name: str) -> None:
    coin = COINS[name]

    def kept(part: float) -> Callable[[Any, Any], bool]:
        return lambda p, q: coin() * part < p / q

    right, wrong = (verdict(leviathan(kept=kept(part))) for part in (1.0, 0.8))
    assert right != ("proved" if name in foreign_coins.NO_CHANCE else "broken")
    assert wrong != "proved"


@pytest.mark.parametrize(
    "name", some_of(WAYS, {"race_by_heap", "alias_of_one_number", "guarded", "in_float32"})
)
def test_a_way_to_draw(name: str) -> None:
    assert verdict(leviathan(draw=WAYS[name])) != "broken"
    assert verdict(leviathan(draw=lambda weights: WAYS[name](weights**1.5))) != "proved"


@pytest.mark.parametrize("name", some_of(TESTS, {"a rounded sum", "choice of two", "relu"}))
def test_a_way_to_test_a_token(name: str) -> None:
    assert verdict(leviathan(kept=TESTS[name])) != "broken"
    assert verdict(leviathan(kept=lambda p, q: TESTS[name](p, 0.7 * q))) != "proved"


@pytest.mark.parametrize(
    "name", some_of(WHOLES, {"by_its_own_law", "by_its_kind", "remembered_answers", "of_numpy"})
)
def test_a_whole_sampler(name: str) -> None:
    right, wrong = (verdict(lambda case, rest=rest: WHOLES[name](case, rest)) for rest in (True, False))
    assert right != ("proved" if name in foreign_wholes.NO_CHANCE else "broken")
    assert wrong != "proved"


def test_as_many_as_are_wanted() -> None:
    assert len(COINS) >= 120
    assert len(WAYS) >= 65
    assert len(TESTS) + len(WHOLES) >= 50
