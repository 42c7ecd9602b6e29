"""A fault that comes once in 2^24 drafts or less is named where its cause is seen, and never wrongly."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from torch import Tensor

from draftwood import Deterministic, WithoutReplacement
from draftwood.testing import LawBroken, SamplerCase, prove_sampler, sampler_models
from draftwood.testing.samplers.rare_faults import COIN_OF_ZERO, EMPTY_RESIDUAL, PLACE_AFTER_THE_LAST
from tests.framework import foreign_samplers as foreign
from tests.framework.foreign_samplers import residual

ALL = sampler_models()
FORBIDS = {name: ALL[name] for name in ("plain", "a target that forbids tokens")}
SPARSE = {name: ALL[name] for name in ("a draft that lacks tokens", "a target that forbids tokens")}
EQUAL = {name: ALL[name] for name in ("plain", "draft and target equal")}


def coin(dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand((), dtype=dtype)


def drawn(weights: Tensor) -> int:
    return int(torch.multinomial(weights, 1))


def chain(
    test: Callable[[Any, Any], Any] = lambda t, d: coin() < t / d,
    draw: Callable[[Tensor], int] = drawn,
    left: Callable[[Tensor, Tensor], Tensor] = residual,
) -> Callable[[SamplerCase], Any]:
    def sampler(case: SamplerCase) -> Any:
        tokens = case.draft_tokens.tolist()
        for place, token in enumerate(tokens):
            target, draft = case.target_probs[place], case.draft_probs[place]
            if not test(target[token], draft[token]):
                return [*tokens[:place], draw(left(target, draft))]
        return [*tokens, draw(case.target_probs[-1])]

    return sampler


def siblings_of_one_coin(case: SamplerCase) -> Any:
    """SGLang's rule for chosen siblings, with `<=`."""
    row, out = 0, []
    while children := case.children(row):
        u, reached = coin(), torch.zeros(())
        for child in children:
            token = int(case.draft_tokens[child])
            reached = reached + case.target_probs[row, token]
            if u <= reached:
                out.append(token)
                row = child + 1
                break
        else:
            rest = case.target_probs[row].clone()
            rest[[int(case.draft_tokens[child]) for child in children]] = 0
            return [*out, drawn(rest)]
    return [*out, drawn(case.target_probs[row])]


def with_uniforms(case: SamplerCase, accepts: Callable[[Any, Any, Any], Any]) -> list[int]:
    tokens = case.draft_tokens.tolist()
    *coins, last = case.uniforms.tolist()
    for place, token in enumerate(tokens):
        target, draft = case.target_probs[place], case.draft_probs[place]
        if not accepts(coins[place], float(target[token]), float(draft[token])):
            return [*tokens[:place], by_heights(residual(target, draft), last)]
    return [*tokens, by_heights(case.target_probs[-1], last)]


def by_heights(weights: Tensor, u: float) -> int:
    heights = (weights / weights.sum()).cumsum(0)
    place = int((heights <= u).sum())
    return min(place, int(weights.nonzero().max()))


ZERO: dict[str, tuple[Any, dict[str, Any]]] = {
    "u <= p / q": (chain(lambda t, d: coin() <= t / d), {}),
    "u q <= p": (chain(lambda t, d: coin() * d <= t), {}),
    "not u > p / q": (chain(lambda t, d: not coin() > t / d), {}),
    "p / q >= u": (chain(lambda t, d: (t / d) >= coin()), {}),
    "a logarithm": (chain(lambda t, d: coin().log() <= t.log() - d.log()), {}),
    "a difference": (chain(lambda t, d: coin() - t / d <= 0), {}),
    "random.random": (chain(lambda t, d: random.random() <= float(t / d)), {}),
    "numpy": (chain(lambda t, d: np.random.rand() <= float(t / d)), {}),
    "float32": (chain(lambda t, d: coin(torch.float32) <= t / d), {}),
    "a tree": (
        siblings_of_one_coin,
        {"parents": (0, 0, 1), "law": Deterministic, "models": {"both one-hot": ALL["both one-hot"]}},
    ),
    "uniforms": (lambda case: with_uniforms(case, lambda u, t, d: u <= t / d), {"uniforms": 3}),
    "uniforms of float32": (
        lambda case: with_uniforms(case, lambda u, t, d: u * d <= t),
        {"uniforms": 3, "dtype": torch.float32},
    ),
}


@pytest.mark.parametrize("kind", ZERO)
def test_a_coin_of_0_that_accepts_is_named(kind: str) -> None:
    sampler, options = ZERO[kind]
    assert told(sampler, **options) == COIN_OF_ZERO


def told(sampler: Any, **options: Any) -> str:
    with pytest.raises(LawBroken) as caught:
        prove_sampler(sampler, **{"models": FORBIDS} | options)
    assert (caught.value.error or 0) < 1e-6
    return caught.value.likely or ""


def seldom(chance: float, act: Callable[[list[int], int], Any]) -> Any:
    """A right sampler that does something else once in `1 / chance` calls."""
    right = chain()

    def sampler(case: SamplerCase) -> Any:
        out = right(case)
        return act(out, case.target_probs.shape[-1]) if random.random() < chance else out

    return sampler


def raising(out: list[int], vocab: int) -> Any:
    raise LookupError("the dominant token is nan")


def log_ratio(small: float) -> Any:
    return lambda target, draft: coin().log() < (target + small).log() - (draft + small).log()


def ratio(small: float) -> Any:
    return lambda target, draft: coin() < (target + small) / draft


NOT_SHOWN: dict[str, tuple[Any, dict[str, Any]]] = {
    **{f"log (p + {small:g})": (chain(log_ratio(small)), {}) for small in (1e-10, 1e-16, 1e-20, 1e-300)},
    **{f"(p + {small:g}) / q": (chain(ratio(small)), {}) for small in (1e-10, 1e-16, 1e-20, 1e-300)},
    "a residual above 0": (chain(left=lambda t, d: (t - d).clamp(min=1e-10)), {}),
    "a target above 0": (
        lambda case: chain()(attrs.evolve(case, target_probs=case.target_probs.clamp(min=1e-12))),
        {},
    ),
    "logits above -25": (
        lambda case: chain()(attrs.evolve(case, target_probs=case.target_logits.clamp(min=-25).softmax(-1))),
        {},
    ),
    "searched from the left": (
        chain(draw=lambda w: int(torch.searchsorted(w.cumsum(0), coin() * w.sum()))),
        {"models": SPARSE},
    ),
    "no token": (seldom(1e-9, lambda out, vocab: []), {}),
    "too many tokens": (seldom(1e-9, lambda out, vocab: [*out, *[0] * 9]), {}),
    "an end mark": (seldom(1e-8, lambda out, vocab: [*out[:-1], vocab]), {}),
    "a seldom end mark": (seldom(1e-13, lambda out, vocab: [*out[:-1], vocab]), {}),
    "another number": (seldom(1e-8, lambda out, vocab: [*out[:-1], vocab + 5]), {}),
    "an error": (seldom(1e-8, raising), {}),
    "uniforms and a small number": (
        lambda case: with_uniforms(case, lambda u, t, d: u < (t + 1e-12) / d),
        {"uniforms": 3},
    ),
    "uniforms and a very small number": (
        lambda case: with_uniforms(case, lambda u, t, d: u < (t + 1e-30) / d),
        {"uniforms": 3},
    ),
    "siblings and a small number": (
        lambda case: foreign.tree(attrs.evolve(case, target_probs=case.target_probs.clamp(min=1e-12))),
        {"parents": (0, 0), "law": WithoutReplacement, "uniforms": 3},
    ),
}


@pytest.mark.parametrize("kind", NOT_SHOWN)
def test_another_rare_fault_is_not_called_a_coin_of_0(kind: str) -> None:
    sampler, options = NOT_SHOWN[kind]
    assert told(sampler, **options) == ""


def test_a_place_after_the_last_token_is_named_where_rounding_finds_it() -> None:
    def unbounded(case: SamplerCase) -> Any:
        def draw(weights: Tensor) -> int:
            heights = (weights / weights.sum()).cumsum(0)
            return int((heights <= coin()).sum())

        return chain(draw=draw)(case)

    assert told(unbounded, models={"plain": ALL["plain"], "flat": ALL["flat"]}) == PLACE_AFTER_THE_LAST


def test_an_empty_residual_is_named_where_target_and_draft_are_equal() -> None:
    def left(target: Tensor, draft: Tensor) -> Tensor:
        weights = (target - draft).clamp(min=0)
        return weights / weights.sum()

    def sampler(case: SamplerCase) -> Any:
        again = case.target_logits.softmax(-1)  # equal up to rounding
        return chain(lambda t, d: coin() < t / d, left=left)(attrs.evolve(case, target_probs=again))

    assert told(sampler, models=EQUAL) == EMPTY_RESIDUAL
