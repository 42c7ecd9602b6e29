"""Samplers in the manner of other projects: every right one passes, every wrong one is caught."""

from __future__ import annotations

from typing import Any

import pytest

from draftwood.testing import LawBroken, prove_sampler, sampler_models
from tests.framework.other_samplers import RIGHT
from tests.framework.wrong_samplers import WRONG

ALL = sampler_models()
FEW = ("plain", "a target that forbids tokens")


def with_models(options: dict[str, Any]) -> dict[str, Any]:
    names = [options["models"]] if "models" in options else ["plain"] if "samples" in options else FEW
    return options | {"models": {name: ALL[name] for name in names}}


def cases(samplers: dict[str, Any]) -> list[Any]:
    """The names; four or more uniforms take long to split, and others show the same in short."""
    return [
        pytest.param(name, marks=pytest.mark.thorough if options.get("uniforms", 0) > 3 else ())
        for name, (_, options) in samplers.items()
    ]


@pytest.mark.parametrize("name", cases(RIGHT))
def test_a_right_sampler_passes(name: str) -> None:
    sampler, options = RIGHT[name]
    assert prove_sampler(sampler, **with_models(options)).fault == ""


@pytest.mark.parametrize("name", cases(WRONG))
def test_a_wrong_sampler_is_caught(name: str) -> None:
    sampler, options = WRONG[name]
    with pytest.raises(LawBroken):
        prove_sampler(sampler, **with_models({"models": "plain"} | options))


def test_as_many_as_are_wanted() -> None:
    assert len(RIGHT) >= 20
    assert len(WRONG) >= 25
