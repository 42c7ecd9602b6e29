"""Samplers as people write them, found to be judged wrongly once: each right one has a wrong twin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from draftwood import Deterministic, WithoutReplacement
from draftwood.testing import LawBroken, SamplerCase, measure_sampler, prove_sampler, sampler_models
from draftwood.testing.diagnosis.intervals import UnseenChance
from tests.framework import foreign_samplers as foreign
from tests.framework.foreign_samplers import residual

F64 = torch.float64
PLAIN = {"plain": sampler_models()["plain"]}
EQUAL = {"equal": sampler_models()["draft and target equal"]}
Weights = torch.Tensor
Right = Callable[[SamplerCase], Any]


def coin() -> torch.Tensor:
    return torch.rand((), dtype=F64)


def leviathan(draw: Callable[[Weights], int], *, left: Any = residual) -> Right:
    def sampler(case: SamplerCase) -> list[int]:
        tokens = case.draft_tokens.tolist()
        for place, token in enumerate(tokens):
            target, draft = case.target_probs[place], case.draft_probs[place]
            if not coin() < target[token] / draft[token]:
                return [*tokens[:place], draw(left(target, draft))]
        return [*tokens, draw(case.target_probs[-1])]

    return sampler


def recovered_everywhere(wrong: bool) -> Right:
    """A recovered token for each place, as vLLM draws them; where none is needed the residual is empty."""

    @torch.inference_mode()
    def sampler(case: SamplerCase) -> torch.Tensor:
        n, vocab = case.draft_probs.shape
        places = torch.arange(n)
        logs = case.target_probs.log()[places, case.draft_tokens]
        logs = logs - case.draft_probs.log()[places, case.draft_tokens]
        accepted = torch.rand(n, dtype=F64).log() < logs
        left = (case.target_probs[:n] - (0.9 if wrong else 1.0) * case.draft_probs).clamp(min=0)
        recovered = (left / torch.empty(n, vocab, dtype=F64).exponential_()).argmax(-1)
        length = int(accepted.long().cumprod(0).sum())
        last = torch.multinomial(case.target_probs[n], 1) if length == n else recovered[length, None]
        return torch.cat([case.draft_tokens[:length], last])

    return sampler


def gumbel_in_float32(wrong: bool) -> Right:
    def draw(weights: Weights) -> int:
        noise = -torch.log(-torch.log(torch.rand(len(weights))))
        return int(
            (weights.log().float() + noise + (0.1 * torch.arange(len(weights)) if wrong else 0)).argmax()
        )

    return leviathan(draw)


def all_in_float32(wrong: bool) -> Right:
    """Its arithmetic is float32, whatever it is given."""

    def sampler(case: SamplerCase) -> list[int]:
        targets, drafts = case.target_probs.float(), case.draft_probs.float()
        tokens = case.draft_tokens.tolist()
        for place, token in enumerate(tokens):
            if not coin() < targets[place, token] / drafts[place, token] * (1.001 if wrong else 1):
                left = residual(targets[place], drafts[place])
                return [*tokens[:place], int(torch.multinomial(left, 1))]
        return [*tokens, int(torch.multinomial(targets[-1], 1))]

    return sampler


def mixture(wrong: bool) -> Right:
    """Acceptance is one more entry of the weights from which a token is drawn."""

    def sampler(case: SamplerCase) -> list[int]:
        out: list[int] = []
        for place, token in enumerate(case.draft_tokens.tolist()):
            target, draft = case.target_probs[place], case.draft_probs[place]
            both = torch.minimum(target, draft)
            kept = both[token] / draft[token]
            left = (target - both) / (target - both).sum().clamp(min=1e-300) * (1 - kept)
            drawn = int(torch.multinomial(torch.cat([left, kept.reshape(1) * (1.1 if wrong else 1)]), 1))
            if drawn < len(target):
                return [*out, drawn]
            out.append(token)
        return [*out, int(torch.multinomial(case.target_probs[-1], 1))]

    return sampler


def down_a_tree(wrong: bool) -> Right:
    """The target's own draws, as long as a child has them; numpy's generator is made for each."""

    def sampler(case: SamplerCase) -> np.ndarray[Any, Any]:
        row, out = 0, []
        while True:
            weights = case.target_probs[row].numpy()
            out.append(int(np.random.default_rng().choice(len(weights), p=weights)))
            children = case.children(row)
            equal = [child for child in children if int(case.draft_tokens[child]) == out[-1]]
            if not equal:
                return np.asarray(out)
            row = (children[0] if wrong else equal[-1]) + 1

    return sampler


TREE: dict[str, Any] = {"parents": (0, 0, 1)}

SAMPLERS: dict[str, tuple[Callable[[bool], Right], dict[str, Any]]] = {
    "recovered everywhere": (recovered_everywhere, {"models": PLAIN | EQUAL}),
    "Gumbel noise in float32": (gumbel_in_float32, {"models": {"sharp": sampler_models()["sharp"]}}),
    "all in float32": (all_in_float32, {"models": {"sharp": sampler_models()["sharp"]}}),
    "a mixture": (mixture, {}),
    "down a tree of chosen tokens": (down_a_tree, TREE | {"law": Deterministic}),
    "down a tree of drawn tokens": (down_a_tree, TREE | {"law": WithoutReplacement}),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_right_sampler_passes_and_its_wrong_twin_does_not(name: str) -> None:
    make, options = SAMPLERS[name]
    options = {"models": PLAIN} | options
    assert prove_sampler(make(False), **options).verdict == "lossless"
    with pytest.raises(LawBroken):
        prove_sampler(make(True), **options)


def test_a_residual_divided_by_a_sum_of_0_is_a_fault_whose_size_is_told() -> None:
    def divided(target: Weights, draft: Weights) -> Weights:
        left = (target - draft).clamp(min=0)
        return left / left.sum()

    def sampler(case: SamplerCase) -> Any:
        again = case.target_logits.softmax(-1)  # equal up to rounding
        tokens = case.draft_tokens.tolist()
        for place, token in enumerate(tokens):
            if coin() >= again[place, token] / case.draft_probs[place, token]:
                left = divided(again[place], case.draft_probs[place])
                return [*tokens[:place], int(left.multinomial(1))]
        return [*tokens, int(again[-1].multinomial(1))]

    with pytest.raises(LawBroken, match="The fault shows with probability"):
        prove_sampler(sampler, models=EQUAL)


def test_a_place_after_the_last_token_by_rounding_is_no_coin_of_0() -> None:
    def systematic(weights: torch.Tensor) -> int:
        teeth = (torch.arange(4, dtype=torch.float64) + torch.rand((), dtype=torch.float64)) / 4
        heights = weights.cumsum(0)
        found = torch.searchsorted(heights, teeth * heights[-1], right=True)
        return int(found[torch.randint(4, ())])

    with pytest.raises(LawBroken, match="does not exist") as caught:
        prove_sampler(leviathan(systematic), models=PLAIN)
    assert "a sum that is rounded up" in (caught.value.likely or "")


def test_given_uniforms_a_quarter_of_the_calls_is_repeated() -> None:
    made = []

    def counted(case: SamplerCase) -> Any:
        made.append(1)
        return foreign.chain(case)

    report = measure_sampler(counted, uniforms=3, models=PLAIN)
    assert report.calls < len(made) < 1.4 * report.calls


def test_a_draw_in_a_call_that_is_not_repeated_is_seen() -> None:
    calls = []

    def sampler(case: SamplerCase) -> Any:
        calls.append(1)
        if len(calls) % 5 == 4:  # the third call that is made once
            torch.rand(1)
        return foreign.chain(case)

    with pytest.raises(UnseenChance, match="torch's own generator"):
        prove_sampler(sampler, uniforms=3, models=PLAIN)
