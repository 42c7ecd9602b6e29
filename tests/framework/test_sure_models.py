"""Mistakes that show only where target and draft are both nearly sure of a token, or nearly agree."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.testing import LawBroken, SamplerCase, prove_sampler, sampler_models

Test = Callable[[float, float], float]


def chain(
    test: Test = lambda target, draft: target / draft,
    left: Callable[[Tensor, Tensor], Tensor] = lambda target, draft: (target - draft).clamp(min=0),
    last: Callable[[Tensor], Tensor] = lambda target: target,
) -> Callable[[SamplerCase], list[int]]:
    """A sampler of chains with its own chance of acceptance, residual, and weights of the last token."""

    def sampler(case: SamplerCase) -> list[int]:
        tokens = case.draft_tokens.tolist()
        for place, token in enumerate(tokens):
            target, draft = case.target_probs[place], case.draft_probs[place]
            if torch.rand((), dtype=torch.float64) >= test(float(target[token]), float(draft[token])):
                weights = left(target, draft)
                weights = weights if weights.any() else target
                return [*tokens[:place], int(torch.multinomial(weights, 1))]
        return [*tokens, int(torch.multinomial(last(case.target_probs[-1]), 1))]

    return sampler


def _fallen_back(target: Tensor, draft: Tensor) -> Tensor:
    left = (target - draft).clamp(min=0)
    return left if left.sum() > 1e-3 else target


def _greedy(weights: Tensor) -> Tensor:
    return (weights == weights.max()).double() if weights.max() > 0.98 else weights


MISTAKES: dict[str, Any] = {
    "accepts where T is at least 0.9": chain(lambda t, d: 1.0 if t >= 0.9 else t / d),
    "accepts where T is at least 0.99": chain(lambda t, d: 1.0 if t >= 0.99 else t / d),
    "accepts where D is below 0.01": chain(lambda t, d: 1.0 if d < 0.01 else t / d),
    "rejects where T / D is below 0.01": chain(lambda t, d: 0.0 if t / d < 0.01 else t / d),
    "the target for a residual below 1e-3": chain(left=_fallen_back),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_where_both_models_are_sure_is_caught(name: str) -> None:
    with pytest.raises(LawBroken) as caught:
        prove_sampler(MISTAKES[name])
    assert (caught.value.error or 0.0) > 1e-6


def test_a_last_token_that_is_greedy_where_the_target_is_sure_is_off_by_as_much() -> None:
    with pytest.raises(LawBroken) as caught:
        prove_sampler(chain(last=_greedy))
    assert (caught.value.error or 0.0) > 1e-3


def test_one_coin_for_two_siblings_of_three_tokens_is_caught() -> None:
    def sampler(case: SamplerCase) -> list[int]:
        coin = torch.rand((), dtype=torch.float64)
        left, draft = case.target_probs[0], case.draft_probs[0]
        for token in case.draft_tokens.tolist():
            if coin < left[token] / draft[token]:
                return [token]
            rest = (left - draft).clamp(min=0)
            left = rest / rest.sum() if rest.any() else left
        return [int(torch.multinomial(left, 1))]

    with pytest.raises(LawBroken, match="is biased"):
        prove_sampler(sampler, parents=(0, 0))


def test_a_right_sampler_passes_on_these_models_of_every_seed() -> None:
    for seed in range(4):
        models = {name: pair for name, pair in sampler_models(seed=seed).items() if "surer" in name}
        assert len(models) == 2
        prove_sampler(chain(), models=models, seed=seed)


def test_large_vocabularies_go_without_these_models() -> None:
    assert len(sampler_models(12)) == len(sampler_models(13)) + 2
