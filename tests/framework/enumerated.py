"""The exact law of a decoder's text after one prompt, also with transformers' processors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood import SpeculativeDecoder
from draftwood.testing import NextTokenModel
from draftwood.testing.proofs import decoder_law

Law = dict[tuple[int, ...], float]
PROMPT = [0, 1]


def written_law(decoder: SpeculativeDecoder, *, tokens: int, **options: Any) -> Law:
    """The law of the first `tokens` tokens after `PROMPT`, with `generate`'s own options."""
    law = decoder_law.written_law(decoder, [PROMPT], options={"max_new_tokens": tokens, **options})
    return {text: chance for (text,), chance in law.items()}


def sequential_law(model: NextTokenModel, probs: decoder_law.NextToken, *, tokens: int) -> Law:
    """Returns the law of sequential sampling, with `probs(text, logits)` `[vocab]` of the next token."""
    return decoder_law.sequential_law(model, PROMPT, probs, tokens=tokens)


def error(actual: Law, expected: Law) -> float:
    texts = actual.keys() | expected.keys()
    return max(abs(actual.get(text, 0.0) - expected.get(text, 0.0)) for text in texts)


def processed(processors: Sequence[Any], text: Sequence[int], logits: Tensor) -> Tensor:
    """Scores `[vocab]` after transformers' processors, called as `generate` calls them."""
    scores = logits.unsqueeze(0).clone()
    for processor in processors:
        scores = processor(torch.tensor([list(text)]), scores)
    return scores[0]
