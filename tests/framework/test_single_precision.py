"""A right sampler that computes in float32, with whichever package, has float32's tolerance; no other has."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.testing import LawBroken, SamplerCase, prove_sampler, sampler_models

MODELS = {name: sampler_models()[name] for name in ("plain", "a target that forbids tokens", "sharp")}
SINGLE = np.float32


def asked_by_type(weights: torch.Tensor) -> Any:
    return weights.numpy().astype(np.float32)


def asked_by_name(weights: torch.Tensor) -> Any:
    return weights.numpy().astype("float32")


def asked_by_letters(weights: torch.Tensor) -> Any:
    return np.array(weights.tolist(), "f4")


def asked_by_a_constant(weights: torch.Tensor) -> Any:
    return np.asarray(weights, SINGLE)


def number_by_number(weights: torch.Tensor) -> Any:
    return [float(np.float32(one)) for one in weights.tolist()]


def by_torch(weights: torch.Tensor) -> Any:
    return weights.float()


def in_double(weights: torch.Tensor) -> Any:
    return weights.numpy()


def by_a_table(rounded: Any, small: float = 0.0) -> Any:
    """A sampler in pure Python, whose probabilities come from `rounded`."""

    def drawn(weights: list[float]) -> int:
        left = random.random() * sum(weights)
        for token, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return token
        return max(token for token, weight in enumerate(weights) if weight)

    def sampler(case: SamplerCase) -> list[int]:
        tokens = case.draft_tokens.tolist()
        for place, token in enumerate(tokens):
            target = [float(one) for one in rounded(case.target_probs[place])]
            draft = [float(one) for one in rounded(case.draft_probs[place])]
            if not random.random() < (target[token] + small) / draft[token]:
                return [*tokens[:place], drawn([max(t - d, 0.0) for t, d in zip(target, draft, strict=True)])]
        return [*tokens, drawn([float(one) for one in rounded(case.target_probs[-1])])]

    return sampler


ROUNDED = [asked_by_type, asked_by_name, asked_by_letters, asked_by_a_constant, number_by_number, by_torch]


@pytest.mark.parametrize("rounded", ROUNDED)
def test_a_right_sampler_in_float32_passes(rounded: Any) -> None:
    report = prove_sampler(by_a_table(rounded), models=MODELS)
    assert 1e-9 < report.error < report.tolerance < 2e-6


def test_a_sampler_in_float64_with_an_error_as_small_is_biased() -> None:
    assert prove_sampler(by_a_table(in_double), models=MODELS).tolerance < 2e-9
    some = {name: MODELS[name] for name in ("plain",)}
    with pytest.raises(LawBroken, match="An error so small may be rounding"):
        prove_sampler(by_a_table(in_double, small=3e-7), models=some)
