"""The law of a whole text: the tokens that a sampler emitted, continued by the target."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from draftwood.testing.models.toy import NextTokenModel
from draftwood.testing.proofs.lossless import target_law
from draftwood.testing.samplers.sampler_cases import PROMPT, Draft

Text = tuple[int, ...]

Emitted = dict[Text, float]
"""The law of the tokens that are emitted on one draft."""


def continued(
    possible: Sequence[Draft], emitted: Sequence[Emitted], target: NextTokenModel, tokens: int
) -> dict[Text, float]:
    """Returns the law of the first `tokens` tokens, where the target continues the emitted ones."""
    law: Emitted = {}
    rests: dict[Text, Emitted] = {}
    for draft, law_of_one in zip(possible, emitted, strict=True):
        for text, chance in law_of_one.items():
            if text not in rests:
                rests[text] = _rests(text, target, tokens)
            for rest, weight in rests[text].items():
                continuation = (*text, *rest)[:tokens]
                law[continuation] = law.get(continuation, 0.0) + draft.weight * chance * weight
    return law


def written_on(
    counts: Sequence[dict[Text, int]], target: NextTokenModel, tokens: int, seed: int
) -> dict[Text, int]:
    """Returns the counts after the target continues every single sample by drawing, instead of exactly."""
    generator = torch.Generator().manual_seed(seed + 1)
    texts: dict[Text, int] = {}
    together: dict[Text, int] = {}
    for counted in counts:
        for text, count in counted.items():
            together[text] = together.get(text, 0) + count
    for text, count in sorted(together.items()):
        rests = _rests(text, target, tokens)
        weights = torch.tensor(list(rests.values()), dtype=torch.float64)
        drawn = torch.multinomial(weights, count, replacement=True, generator=generator)
        for rest, times in zip(rests, torch.bincount(drawn, minlength=len(rests)).tolist(), strict=True):
            continuation = (*text, *rest)[:tokens]
            texts[continuation] = texts.get(continuation, 0) + times
    return texts


def _rests(text: Text, target: NextTokenModel, tokens: int) -> Emitted:
    """Returns the law of the target's continuation of `text`, up to `tokens` in all."""
    return target_law(target, prompt=(*PROMPT, *text), tokens=max(tokens - len(text), 0))
