"""The exact law of what a decoder writes: every random outcome of a whole call of `generate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from draftwood import Generation, Randomness, SpeculativeDecoder, Streams
from draftwood.testing import ToyModel, enumerate_outcomes

Law = dict[tuple[int, ...], float]
PROMPT = [0, 1]


def written_law(decoder: SpeculativeDecoder, *, tokens: int, **options: Any) -> Law:
    """The law of the first `tokens` tokens after `PROMPT`, with `generate`'s own options."""

    def write(rng: Randomness) -> tuple[int, ...]:
        with mock.patch.object(Streams, "seeded", return_value=Streams(rng, rng)):
            found = decoder.generate([PROMPT], max_new_tokens=tokens, return_dict_in_generate=True, **options)
        assert isinstance(found, Generation)
        return tuple(found.tokens[0])

    law: Law = {}
    for weight, text in enumerate_outcomes(write):
        law[text] = law.get(text, 0.0) + weight
    return law


def sequential_law(model: ToyModel, probs: Callable[[list[int], Tensor], Tensor], *, tokens: int) -> Law:
    """The same one token at a time: `probs(text, logits)` `[vocab]` of the next token."""
    law: Law = {(): 1.0}
    for _ in range(tokens):
        longer: Law = {}
        for text, chance in law.items():
            whole = [*PROMPT, *text]
            for token, p in enumerate(probs(whole, model.logits(whole)).tolist()):
                if p:
                    longer[(*text, token)] = chance * p
        law = longer
    return law


def error(found: Law, wanted: Law) -> float:
    return max(abs(found.get(text, 0.0) - wanted.get(text, 0.0)) for text in found.keys() | wanted.keys())


def processed(processors: Sequence[Any], text: Sequence[int], logits: Tensor) -> Tensor:
    """Scores `[vocab]` after transformers' processors, called as `generate` calls them."""
    scores = logits.unsqueeze(0).clone()
    for processor in processors:
        scores = processor(torch.tensor([list(text)]), scores)
    return scores[0]
