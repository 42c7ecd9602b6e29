"""The mistake of a wrong sampler is named: rightly, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from draftwood.testing import LawBroken, SamplerCase, prove_sampler, sampler_models

FEW = {name: sampler_models()[name] for name in ("plain", "a draft near the target")}


def coin() -> torch.Tensor:
    return torch.rand((), dtype=torch.float64)


def token_at(weights: torch.Tensor, u: torch.Tensor) -> int:
    """Returns the token at `u` of the cumulative weights, and the last one beyond them."""
    for token, height in enumerate(weights.cumsum(0).tolist()[:-1]):
        if u < height:
            return token
    return len(weights) - 1


def biased(mistake: str, temperature: float = 0.5):
    """A sampler of chains with one mistake, written out."""

    def cooled(weights):
        return weights ** (1 / temperature) / (weights ** (1 / temperature)).sum(-1, keepdim=True)

    def top(weights):
        return weights * (weights >= weights.topk(2).values[-1])

    def sampler(case):
        targets, drafts = case.target_probs, case.draft_probs
        tokens, out = case.draft_tokens.tolist(), list[int]()
        rejecting, product = coin(), 1.0
        if mistake == "cooled draft":
            drafts = cooled(drafts)
        if mistake == "cooled target":
            targets = cooled(targets)
        last = len(tokens) - 1
        for index, token in enumerate(tokens):
            row = {"shifted": index + 1, "parent": max(index - 1, 0)}.get(mistake, index)
            of_draft = min(index + 1, last) if mistake == "next draft row" else index
            target, draft = targets[row], drafts[of_draft]
            if mistake != "one coin":
                rejecting = coin()
            chance = target[token] / draft[token]
            if mistake == "target only":
                chance = target[token]
            if mistake == "draft only":
                chance = draft[token]
            if mistake == "upside down":
                chance = draft[token] / target[token]
            if mistake == "lenient":
                chance = chance / 0.8
            if mistake == "no coin":
                chance = torch.tensor(float(chance >= 1))
            if mistake == "argmax accepted":
                chance = torch.tensor(float(target.argmax() == token))
            if mistake == "naive block":
                chance = product = product * chance
            if mistake == "cooled in the test":
                chance = target[token] / cooled(draft)[token]
            if not rejecting < chance:
                left = (target - draft).clamp(min=0)
                left = left / left.sum() if left.any() else target
                if mistake == "first residual":
                    left = (targets[0] - drafts[0]).clamp(min=0)
                elif mistake == "last residual":
                    left = (targets[last] - drafts[last]).clamp(min=0)
                elif mistake == "no residual":
                    left = target
                elif mistake == "first row":
                    left = targets[0]
                elif mistake == "last row":
                    left = targets[-1]
                elif mistake == "of the draft":
                    left = draft
                elif mistake == "other side":
                    left = (draft - target).clamp(min=0)
                elif mistake == "absolute":
                    left = (target - draft).abs()
                elif mistake == "softmax":
                    left = (target - draft).clamp(min=0).softmax(-1)
                elif mistake == "token out":
                    left = target.clone()
                    left[token] = 0
                elif mistake == "filtered later":
                    left = (top(target) / top(target).sum() - draft).clamp(min=0)
                elif mistake == "cooled in the residual":
                    left = (target - cooled(draft)).clamp(min=0)
                if mistake == "argmax":
                    return [*out, int(left.argmax())]
                if mistake == "same coin":
                    return [*out, token_at(left, rejecting)]
                if mistake == "not renormalised":
                    return [*out, token_at((target - draft).clamp(min=0), coin())]
                return [*out, int(torch.multinomial(left if left.any() else target, 1))]
            out.append(token)
            if mistake == "goes on with the root":
                targets = targets[:1].expand_as(targets)
        bonus = targets[-1]
        if mistake == "greedy last":
            return [*out, int(bonus.argmax())]
        if mistake == "last row but one":
            bonus = targets[-2]
        if mistake == "bonus of the residual":
            bonus = (targets[last] - drafts[last]).clamp(min=0)
        if mistake == "cooled bonus":
            bonus = cooled(bonus)
        if mistake == "filtered later":
            bonus = top(bonus)
        return [*out, int(torch.multinomial(bonus, 1))]

    return sampler


NAMED = {
    "target only": "accepts with the target's probability T",
    "draft only": "accepts with the draft's probability D",
    "upside down": "it accepts with D / T",
    "shifted": "rows shifted by one",
    "parent": "parent's row",
    "next draft row": "tests and draws by the draft's rows shifted by one: the row after its own",
    "one coin": "with one coin",
    "first residual": "residual of the first step",
    "last residual": "residual of the last step",
    "no residual": "after a rejection it draws from the target;",
    "first row": "draws from the target's first row",
    "last row": "draws from the target's last row",
    "of the draft": "after a rejection it draws from the draft",
    "other side": "the residual's other side",
    "absolute": "|T - D|",
    "argmax": "residual's most likely token",
    "softmax": "softmax of the residual",
    "token out": "target without the rejected token",
    "same coin": "coin that rejected a token also chooses",
    "not renormalised": "without dividing by their sum",
    "lenient": "it accepts with 1.25 T / D",
    "no coin": "without a coin",
    "argmax accepted": "accepts only the target's most likely token",
    "naive block": "product of the ratios",
    "greedy last": "is the target's most likely one",
    "last row but one": "comes from the row before the last",
    "bonus of the residual": "comes from the last step's residual",
    "cooled bonus": "the target has an extra temperature (0.5) in the last token",
    "cooled draft": "the draft has an extra temperature (0.5);",
    "cooled target": "the target has an extra temperature (0.5) in the test, the residual and the last",
    "cooled in the test": "the draft has an extra temperature (0.5) in the test",
    "cooled in the residual": "the draft has an extra temperature (0.5) in the residual",
    "filtered later": "only the 2 most likely tokens are kept for the tokens that it draws",
}


def named(mistake: str, parents: Sequence[int] = (0, 1), **options: Any) -> str:
    with pytest.raises(LawBroken) as caught:
        prove_sampler(biased(mistake, **options), models=FEW, parents=parents)
    return caught.value.likely or ""


@pytest.mark.parametrize("mistake", NAMED)
def test_a_mistake_is_named(mistake: str) -> None:
    # On two tokens, the row after a token's own and the last row are often the same.
    assert NAMED[mistake] in named(mistake, range(3) if mistake == "next draft row" else (0, 1))


@pytest.mark.parametrize("part", ["test", "residual"])
def test_a_name_that_another_mistake_may_bear_is_not_the_only_one(part: str) -> None:
    def sampler(case: SamplerCase) -> list[int]:
        tokens = case.draft_tokens.tolist()
        for at, token in enumerate(tokens):
            target, draft = case.target_probs[at], case.draft_probs[at]
            first = case.draft_probs[0]
            if not torch.rand(()) < target[token] / (first if part == "test" else draft)[token]:
                left = (target - (draft if part == "test" else first)).clamp(min=0)
                return [*tokens[:at], int(torch.multinomial(left if left.sum() > 0 else target, 1))]
        return [*tokens, int(torch.multinomial(case.target_probs[-1], 1))]

    with pytest.raises(LawBroken) as caught:
        prove_sampler(sampler, models=FEW)
    likely = caught.value.likely or ""
    assert "shifted by one" not in likely or "first row" in likely


@pytest.mark.parametrize("temperature", [0.83, 1.3])
def test_the_number_in_a_mistake_is_found(temperature: float) -> None:
    assert f"the draft has an extra temperature ({temperature})" in named(
        "cooled draft", temperature=temperature
    )


def test_a_mistake_that_is_not_known_is_not_named() -> None:
    assert named("goes on with the root") == ""
