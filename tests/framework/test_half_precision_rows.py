"""Probabilities in bfloat16 and float16: a right sampler that converts them is right, a wrong one is not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import attrs
import pytest
import torch

from draftwood import InvalidInput, SamplingParams, WithoutReplacement
from draftwood.testing import (
    CannotEnumerate,
    LawBroken,
    SamplerCase,
    measure_sampler,
    prove_sampler,
    sampler_models,
)
from draftwood.testing.samplers.rounded_models import PARTS, RoundedModel
from tests.framework import foreign_samplers as foreign
from tests.framework.other_samplers import padded_batch
from tests.framework.test_odd_samplers import leviathan

ALL = sampler_models()
FEW = {name: ALL[name] for name in ("plain", "a target that forbids tokens")}
FORBIDS = {"a target that forbids tokens": ALL["a target that forbids tokens"]}
HALF = [torch.bfloat16, torch.float16]


def converted(sampler: Callable[[SamplerCase], Any], dtype: torch.dtype = torch.float32) -> Any:
    """Returns the sampler with the probabilities converted first."""
    return lambda case: sampler(
        attrs.evolve(case, target_probs=case.target_probs.to(dtype), draft_probs=case.draft_probs.to(dtype))
    )


def of_logits(case: SamplerCase) -> Any:
    target = case.target_logits.softmax(-1)
    return leviathan(attrs.evolve(case, target_probs=target, draft_probs=case.draft_probs.float()))


RIGHT: dict[str, tuple[Any, dict[str, Any]]] = {
    "its own chance": (converted(leviathan), {}),
    "in float64": (converted(leviathan, torch.float64), {}),
    "of logits": (of_logits, {}),
    "uniforms": (converted(foreign.chain), {"uniforms": 3}),
    "a tree": (
        converted(foreign.tree),
        {"uniforms": 3, "parents": (0, 0), "law": WithoutReplacement},
    ),
    "a batch": (converted(padded_batch), {"samples": 20_000, "batched": True}),
    "greedy rows": (converted(leviathan), {"settings": (SamplingParams(1.0), SamplingParams(0.0))}),
    "a larger vocabulary": (converted(leviathan), {"vocab_size": 7, "models": None}),
}


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_sampler_that_converts_its_rows_passes(name: str, dtype: torch.dtype) -> None:
    sampler, options = RIGHT[name]
    report = prove_sampler(sampler, dtype=dtype, **{"models": FEW} | options)
    assert report.p_value is not None or report.error < 1e-7


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("mistake", ["target for residual", "coin of zero", "not renormalised"])
def test_a_wrong_one_does_not(mistake: str, dtype: torch.dtype) -> None:
    with pytest.raises(LawBroken):
        prove_sampler(converted(partial(foreign.chain, mistake=mistake)), uniforms=3, models=FEW, dtype=dtype)


def with_few_bits(case: SamplerCase) -> list[int]:
    """Leviathan's rule, whose residual is that of numbers with few bits; it is drawn from in float32."""
    tokens = case.draft_tokens.tolist()
    for place, token in enumerate(tokens):
        target, draft = case.target_probs[place], case.draft_probs[place]
        if not torch.rand(()) < target[token].float() / draft[token].float():
            rest = (target - draft).clamp(min=0)
            rest = rest / rest.sum()
            return [*tokens[:place], int(torch.multinomial(rest.float(), 1))]
    return [*tokens, int(torch.multinomial(case.target_probs[-1].float(), 1))]


def test_one_that_computes_with_few_bits_is_off_and_told_why() -> None:
    with pytest.raises(LawBroken, match=r"computes in torch\.bfloat16: convert the probabilities to float32"):
        prove_sampler(with_few_bits, models=FEW, dtype=torch.bfloat16)


def test_draws_by_weights_with_few_bits_give_no_verdict() -> None:
    with pytest.raises(CannotEnumerate, match="draw them in float32, or give samples="):
        prove_sampler(leviathan, models=FEW, dtype=torch.bfloat16)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("vocab", [2, 3, 40, 5000])
def test_rounded_rows_sum_to_1_and_are_held_exactly(vocab: int, dtype: torch.dtype) -> None:
    for name, (target, _) in sampler_models(vocab).items():
        rounded = RoundedModel(vocab, model=target, parts=PARTS[dtype])
        row, before = rounded.probs([0]), target.probs([0])
        assert float(row.to(dtype).double().sum()) == 1.0, name
        assert float((row.to(dtype).double() - row).abs().max()) < 1e-15
        assert float((row - before).abs().max()) < 1 / PARTS[dtype]


def test_settings_and_dtypes_without_a_right_law_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"give dtype=torch\.float32 for other settings"):
        measure_sampler(leviathan, dtype=torch.bfloat16, settings=(SamplingParams(0.7),))
    with pytest.raises(InvalidInput, match=r"dtype is torch\.int64; give torch\.float64"):
        measure_sampler(leviathan, dtype=torch.int64)
