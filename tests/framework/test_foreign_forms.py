"""Samplers in other forms, and in other forms of what they return: right ones pass, wrong ones do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from draftwood import InvalidInput
from draftwood.testing import CannotEnumerate, LawBroken, SamplerCase, prove_sampler, sampler_models
from tests.framework.foreign_forms import BATCHES, FORMS, KEYS
from tests.thorough import some_of

PLAIN = {"plain": sampler_models()["plain"]}
SHOWN = {"padded_list", "a_list_of_one_row", "one_after_the_other", "numpy_vectorised"}


def prove(form: Any, rest: bool, **options: Any) -> None:
    prove_sampler(lambda case: form(case, rest), models=PLAIN, **options)


@pytest.mark.parametrize("name", some_of(FORMS, SHOWN))
def test_a_form_of_a_sampler(name: str) -> None:
    prove(FORMS[name], True)
    with pytest.raises(LawBroken):
        prove(FORMS[name], False)


@pytest.mark.parametrize("name", KEYS)
def test_keys_get_no_verdict_but_by_samples(name: str) -> None:
    for rest in (True, False):
        with pytest.raises(CannotEnumerate, match="give samples="):
            prove(KEYS[name], rest)
    prove(KEYS[name], True, samples=5000)
    with pytest.raises(LawBroken):
        prove(KEYS[name], False, samples=5000)


@pytest.mark.parametrize("name", some_of(BATCHES, {"ragged lists", "ragged arrays"}))
def test_a_form_of_a_batch(name: str) -> None:
    prove(BATCHES[name], True, samples=3000, batched=True)
    with pytest.raises(LawBroken, match="is biased"):
        prove(BATCHES[name], False, samples=3000, batched=True)


@pytest.mark.parametrize("returned", [None, 3, (torch.tensor([[0, 1]]), 1), "tokens"])
def test_what_is_no_sequence_of_tokens_is_refused(returned: Any) -> None:
    def sampler(_: SamplerCase) -> Any:
        return returned

    with pytest.raises(InvalidInput, match="return only the tokens that it emits"):
        prove_sampler(sampler, models=PLAIN)
