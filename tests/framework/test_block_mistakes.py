"""Mistakes of block verification are named as such: its tests are no mistake where its residual follows."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from draftwood.testing import LawBroken, SamplerCase, prove_sampler, sampler_models
from tests.framework.foreign_samplers import residual
from tests.thorough import some_of

FEW = {name: sampler_models()[name] for name in ("plain", "a draft near the target")}


def block(mistake: str = "") -> Callable[[SamplerCase], list[int]]:
    """Block verification (Sun et al., 2024), written out, or with one mistake."""

    def sampler(case: SamplerCase) -> list[int]:
        target, draft, tokens = case.target_probs, case.draft_probs, case.draft_tokens.tolist()
        product, products, kept = 1.0, [1.0], 0
        for place, token in enumerate(tokens):
            product = product * float(target[place, token] / draft[place, token])
            if mistake != "not capped":
                product = min(product, 1.0)
            products.append(product)
        products = [min(one, 1.0) for one in products]
        for length, product in enumerate(products[1:], 1):
            chance = product
            if length < len(tokens) and mistake != "products":
                left = float((products[length] * target[length] - draft[length]).clamp(min=0).sum())
                if mistake == "not capped":
                    raw = float(target[0, tokens[0]] / draft[0, tokens[0]])
                    left = float((raw * target[length] - draft[length]).clamp(min=0).sum())
                    chance = min(left / (left + 1 - raw), 1.0) if left + 1 - raw > 0 else 1.0
                else:
                    chance = left / (left + 1 - product) if left + 1 - product > 0 else 1.0
            if mistake == "tokens":
                chance = float(target[length - 1, tokens[length - 1]] / draft[length - 1, tokens[length - 1]])
            if torch.rand((), dtype=torch.float64) < chance:
                kept = length
            elif mistake in ("ends early", "tokens"):
                break
        if kept == len(tokens):
            return [*tokens, int(torch.multinomial(target[-2 if mistake == "last" else -1], 1))]
        scale = 1.0 if mistake == "residual" else products[kept]
        after = target[kept] if mistake == "target" else residual(scale * target[kept], draft[kept])
        return [*tokens[:kept], int(torch.multinomial(after, 1))]

    return sampler


NAMED = {
    "residual": "it accepts as block verification does; then draw after a rejection from max(r T - D, 0)",
    "products": "it accepts a block with the product of its ratios, also where another token follows",
    "ends early": "ends at the first one that is rejected",
    "tokens": "after a rejection it draws from max(r T - D, 0) with the product r of the ratios so far",
    "last": "the token after a draft that is accepted as a whole comes from the row before the last",
    "target": "after a rejection it draws from the target;",
    "not capped": "which it does not keep at 1 or less",
}


def test_block_verification_passes() -> None:
    assert prove_sampler(block(), models=FEW).verdict == "lossless"


@pytest.mark.parametrize("mistake", some_of(NAMED, {"residual", "ends early", "last"}))
def test_a_mistake_of_block_verification_is_named(mistake: str) -> None:
    with pytest.raises(LawBroken) as caught:
        prove_sampler(block(mistake), models=FEW)
    assert NAMED[mistake] in (caught.value.likely or "")
    assert "Another mistake" not in (caught.value.likely or "")
