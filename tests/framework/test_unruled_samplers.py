"""A mistake that nobody wrote a rule for is not told as another one."""

from __future__ import annotations

import pytest

from draftwood import Deterministic
from draftwood.testing import LawBroken, prove_sampler, sampler_models
from tests.framework.unruled_samplers import CHOSEN, LAST, TESTS, THRESHOLDS, TOKEN, UNRULED
from tests.thorough import some_of

FEW = {name: sampler_models()[name] for name in ("plain", "a draft near the target")}
ALL = THRESHOLDS | UNRULED
SHOWN = {"T of 0.3", "typical", "the lowest ratio", "draft rows exchanged", "a top-p for the last token"}


@pytest.mark.parametrize("name", some_of(ALL, SHOWN))
def test_the_mistake_or_its_part_is_told(name: str) -> None:
    sampler, says = ALL[name]
    with pytest.raises(LawBroken) as caught:
        prove_sampler(sampler, models=FEW)
    likely = caught.value.likely or ""
    assert all(words in likely for words in says)
    parts = {part for part in (TESTS, TOKEN, LAST) if part in likely and likely.startswith("no known")}
    assert parts <= set(says)


@pytest.mark.parametrize("name", CHOSEN)
def test_tokens_that_were_not_drawn_have_their_own_mistakes(name: str) -> None:
    sampler, says = CHOSEN[name]
    with pytest.raises(LawBroken) as caught:
        prove_sampler(sampler, models=FEW, law=Deterministic)
    likely = caught.value.likely or ""
    assert all(words in likely for words in says)
    assert "was drawn" not in likely
    assert "in its tests" not in likely


def test_as_many_as_are_wanted() -> None:
    assert len(THRESHOLDS) + len(UNRULED) >= 30
    assert len(CHOSEN) >= 4
