"""The exact law of a decoder's text: every random outcome of a call of `generate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from torch import Tensor

from draftwood.decoding.decoder import SpeculativeDecoder
from draftwood.decoding.generation import Generation
from draftwood.laws.randomness import Randomness, Streams
from draftwood.testing.models.toy import NextTokenModel
from draftwood.testing.proofs.enumerator import enumerate_outcomes

Texts = tuple[tuple[int, ...], ...]
"""What was written after every prompt."""

NextToken = Callable[[list[int], Tensor], Tensor]
"""From a text and its logits `[vocab]` to the probabilities `[vocab]` of the token after it."""


def written_law(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Sequence[int]],
    *,
    budget: int = 100_000,
    options: dict[str, Any],
) -> dict[Texts, float]:
    """The joint law of the texts that `decoder.generate` writes after `prompts`, with its own `options`."""

    def write(rng: Randomness) -> Texts:
        with mock.patch.object(Streams, "seeded", return_value=Streams(rng, rng)):
            generation = decoder.generate(
                [list(prompt) for prompt in prompts], return_dict_in_generate=True, **options
            )
        assert isinstance(generation, Generation)
        return tuple(tuple(tokens) for tokens in generation.tokens)

    law: dict[Texts, float] = {}
    for weight, texts in enumerate_outcomes(write, budget=budget):
        law[texts] = law.get(texts, 0.0) + weight
    return law


def sequential_law(
    model: NextTokenModel, prompt: Sequence[int], probs: NextToken, *, tokens: int, ends: Sequence[int] = ()
) -> dict[tuple[int, ...], float]:
    """The law of up to `tokens` tokens after `prompt`, written one at a time until one of `ends`."""
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for length in range(tokens):
        longer: dict[tuple[int, ...], float] = {}
        for text, chance in law.items():
            if len(text) < length or (text and text[-1] in ends):
                longer[text] = chance
                continue
            context = [*prompt, *text]
            for token, p in enumerate(probs(context, model.logits(context)).tolist()):
                if p:
                    longer[(*text, token)] = chance * p
        law = longer
    return law


def product_law(laws: Sequence[dict[tuple[int, ...], float]]) -> dict[Texts, float]:
    """The joint law of independent rows."""
    joint: dict[Texts, float] = {(): 1.0}
    for law in laws:
        joint = {(*texts, text): chance * p for texts, chance in joint.items() for text, p in law.items()}
    return joint
