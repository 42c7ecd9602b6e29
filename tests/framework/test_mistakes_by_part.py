"""Mistakes in one part of a sampler of chains are named: rightly, or by the part that is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from draftwood.testing import LawBroken, SamplerCase, prove_sampler, sampler_models
from tests.framework.foreign_samplers import residual
from tests.thorough import some_of

FEW = {name: sampler_models()[name] for name in ("plain", "a draft near the target")}


def coin() -> Tensor:
    return torch.rand((), dtype=torch.float64)


def at(token: int, like: Tensor) -> Tensor:
    """Returns weights `[vocab]` as `like`'s that are 1 at the token and 0 elsewhere."""
    return (torch.arange(len(like)) == token).to(like.dtype)


def chain(
    *,
    test: Callable[[Any, Any], Any] = lambda t, d: coin() < t / d,
    left: Callable[[Tensor, Tensor, int], Tensor] = lambda t, d, token: residual(t, d),
    last: Callable[[Tensor, Tensor, int], Tensor] = lambda targets, drafts, token: targets[-1],
) -> Callable[[SamplerCase], list[int]]:
    """A sampler of chains with its own test, weights after a rejection, and weights of the last token."""

    def sampler(case: SamplerCase) -> list[int]:
        tokens = case.draft_tokens.tolist()
        for place, token in enumerate(tokens):
            target, draft = case.target_probs[place], case.draft_probs[place]
            if not test(target[token], draft[token]):
                return [*tokens[:place], int(torch.multinomial(left(target, draft, token), 1))]
        return [*tokens, int(torch.multinomial(last(case.target_probs, case.draft_probs, tokens[-1]), 1))]

    return sampler


MISTAKES: dict[str, tuple[Any, str]] = {
    "coin above": (chain(test=lambda t, d: coin() > t / d), "where the coin is above T / D"),
    "Barker's rule": (chain(test=lambda t, d: coin() < t / (t + d)), "T / (T + D)"),
    "a difference": (chain(test=lambda t, d: coin() < t - d), "with T - D;"),
    "no logarithm of the coin": (
        chain(test=lambda t, d: coin() < (t / d).log()),
        "with log T - log D, and not",
    ),
    "no logarithm of T and D": (chain(test=lambda t, d: coin().log() < t - d), "with T - D, not with log T"),
    "one half": (chain(test=lambda t, d: coin() < 0.5), "every drafted token with probability 0.5"),
    "a root": (chain(test=lambda t, d: coin() < (t / d) ** 0.5), "to the power of 0.5"),
    "where T is larger": (chain(left=lambda t, d, token: t * (t > d)), "without taking D away"),
    "uniform": (chain(left=lambda t, d, token: torch.ones_like(t)), "uniformly from the vocabulary"),
    "the larger": (chain(left=lambda t, d, token: torch.maximum(t, d)), "max(T, D)"),
    "a softmax": (chain(left=lambda t, d, token: (t - d).softmax(0)), "the softmax of T - D"),
    "a ratio": (chain(left=lambda t, d, token: t / d), "from T / D"),
    "half of D": (chain(left=lambda t, d, token: (t - d / 2).clamp(min=0)), "max(T - 0.5 D, 0)"),
    "squared": (chain(left=lambda t, d, token: residual(t, d) ** 2), "an extra temperature (0.5)"),
    "rejected again": (chain(left=lambda t, d, token: at(token, t)), "takes the rejected token"),
    "last again": (chain(last=lambda t, d, token: at(token, t[-1])), "is the last drafted token again"),
    "always 0": (chain(last=lambda t, d, token: at(0, t[-1])), "is always token 0"),
    "draft's best": (
        chain(last=lambda t, d, token: at(int(d[-1].argmax()), t[-1])),
        "is the draft's most likely",
    ),
    "mean": (chain(last=lambda t, d, token: t.mean(0)), "the mean of all rows"),
    "a factor near 1": (chain(test=lambda t, d: coin() < t / d / 1.1), "it accepts with 0.909 T / D"),
    "two mistakes": (
        chain(test=lambda t, d: coin() < d / t, last=lambda t, d, token: d[-1]),
        "it accepts with D / T; accept with T / D. Another mistake: the token after a draft that is accepted",
    ),
    "no test, and greedy": (
        chain(test=lambda t, d: False, left=lambda t, d, token: at(int(t.argmax()), t)),
        "it accepts no drafted token; accept with T / D. Another mistake: after a rejection it takes the "
        "target's most likely token;",
    ),
    "cooled tokens": (
        chain(left=lambda t, d, token: residual(t, d) ** 2.5, last=lambda t, d, token: t[-1] ** 2.5),
        "the tokens that it draws have an extra temperature (0.4)",
    ),
    "unknown test": (chain(test=lambda t, d: coin() < t**3), "no known mistake, but one in its tests"),
    "unknown draw": (
        chain(left=lambda t, d, token: residual(t, d) + 0.05),
        "no known mistake, but one in the token after a rejection",
    ),
    "unknown last token": (
        chain(last=lambda t, d, token: t[-1] * t[0]),
        "no known mistake, but one in the token after a draft",
    ),
}


@pytest.mark.parametrize(
    "name",
    some_of(
        MISTAKES,
        {"coin above", "half of D", "always 0", "two mistakes", "no test, and greedy", "unknown draw"},
    ),
)
def test_a_mistake_in_a_part_is_named(name: str) -> None:
    sampler, says = MISTAKES[name]
    with pytest.raises(LawBroken) as caught:
        prove_sampler(sampler, models=FEW)
    assert says in (caught.value.likely or "")


UNREACHED: dict[str, tuple[Any, str]] = {
    "a rejection": (
        chain(
            test=lambda t, d: True,
            left=lambda t, d, token: at(token, t),
            last=lambda t, d, token: t[-1] * t[0],
        ),
        "; it never rejects a token, so that nothing is known of the token after a rejection.",
    ),
    "a whole draft": (
        chain(
            test=lambda t, d: False,
            left=lambda t, d, token: residual(t, d) + 0.05,
            last=lambda t, d, token: t[0],
        ),
        "; it never accepts a whole draft, so that nothing is known of the token after one.",
    ),
}


@pytest.mark.parametrize("name", UNREACHED)
def test_a_part_that_is_never_reached_is_not_called_right(name: str) -> None:
    sampler, says = UNREACHED[name]
    with pytest.raises(LawBroken) as caught:
        prove_sampler(sampler, models=FEW)
    assert says in (caught.value.likely or "")


def test_an_empty_residual_is_not_blamed_on_rounding_where_a_wrong_test_finds_it() -> None:
    def left(t: Tensor, d: Tensor, token: int) -> Tensor:
        weights = (t - d).clamp(min=0)
        return weights / weights.sum()

    some = ("both one-hot", "draft and target equal", "plain")
    with pytest.raises(LawBroken, match="raises") as caught:
        prove_sampler(
            chain(test=lambda t, d: coin() < 0.9 * t / d, left=left),
            models={name: sampler_models()[name] for name in some},
        )
    assert "it accepts with 0.9 T / D" in (caught.value.likely or "")
