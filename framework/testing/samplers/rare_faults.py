"""Names the mistake that a fault shows which comes too seldom to bias anything, where the cause is seen."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch

from draftwood.laws.randomness import Randomness
from draftwood.testing.proofs.enumerator import enumerate_outcomes
from draftwood.testing.samplers.continued_laws import Emitted, Text
from draftwood.testing.samplers.forbidden_texts import forbidden, is_accepted_though_forbidden
from draftwood.testing.samplers.lazy_numbers import LazyChance, LazyNumber
from draftwood.testing.samplers.sampler_cases import Draft, SamplerCase
from draftwood.testing.samplers.torch_randomness import RAISED

COIN_OF_ZERO = "it tests coin <= p, so that a coin of 0 accepts what has probability 0; test coin < p."

EMPTY_RESIDUAL = (
    "a residual that rounding left empty is divided by its sum of 0; fall back to the target there."
)

PLACE_AFTER_THE_LAST = (
    "a uniform or a sum that is rounded up finds a place after the last token; keep the place within the "
    "vocabulary."
)

_EMPTY = 1e-6
"""Mass of a residual that rounding may leave empty."""

_STEPS = 8
"""Steps of a uniform or last digits of a sum, for each token, by which rounding may move the last place."""


@attrs.frozen(eq=False)
class Fault:
    """The first fault of a sampler: its draft, its case with the uniforms if any were given, and its text."""

    draft: Draft
    case: SamplerCase
    text: Text


def name_of_rare(
    fault: Fault,
    words: str,
    evidence: Sequence[tuple[Draft, Emitted]],
    once: Callable[[Draft, Randomness], Text],
    at: Callable[[Draft, SamplerCase], Text],
) -> str:
    """Returns the mistake that a rare fault shows, in a sentence; empty where its cause is not seen.

    Args:
        fault: the fault.
        words: that tell it.
        evidence: all drafts, each with the law of its tokens.
        once: calls the sampler, whose chance comes from an enumerator.
        at: calls the sampler on a case.
    """
    if fault.text == RAISED:
        nan = re.search(r"\bnan\b", words, re.IGNORECASE)
        raising = [draft for draft, law in evidence if RAISED in law]
        return EMPTY_RESIDUAL if nan and all(map(_has_an_empty_residual, raising)) else ""
    if fault.text and fault.text[-1] == fault.draft.target.vocab_size:
        return PLACE_AFTER_THE_LAST if _by_rounding(evidence) else ""
    if not is_accepted_though_forbidden(fault.draft, fault.text):
        return ""
    shown = _only_at_zero(fault, at) if len(fault.case.uniforms) else _always_at_zero(fault.draft, once)
    return COIN_OF_ZERO if shown else ""


def _only_at_zero(fault: Fault, at: Callable[[Draft, SamplerCase], Text]) -> bool:
    """Returns whether the fault is gone where uniforms of 0 are the smallest number above it."""
    uniforms = fault.case.uniforms
    above = torch.where(uniforms == 0, torch.finfo(uniforms.dtype).tiny, uniforms)
    text = at(fault.draft, attrs.evolve(fault.case, uniforms=above))
    return bool((uniforms == 0).any()) and text != RAISED and not forbidden(fault.draft, text)


def _always_at_zero(draft: Draft, once: Callable[[Draft, Randomness], Text]) -> bool:
    """Returns whether the draft has forbidden texts only where a coin of 0 equals its bound."""

    def run(rng: Randomness) -> tuple[Text, bool]:
        with _equal_zeros() as found:
            text = once(draft, rng)
        return text, bool(found)

    faulty = [
        zero and is_accepted_though_forbidden(draft, text)
        for _, (text, zero) in enumerate_outcomes(run)
        if text == RAISED or forbidden(draft, text)
    ]
    return all(faulty) and bool(faulty)


@contextlib.contextmanager
def _equal_zeros() -> Iterator[list[int]]:
    """Gives the random numbers that turned out as the lowest of their grid by a comparison with that one."""
    found: list[int] = []
    below = LazyChance.below

    def watched(
        chance: LazyChance, number: LazyNumber, holds: Callable[[Any], bool], near: Any = math.nan
    ) -> bool:
        first = chance.bounds(number.base)[:2]
        answer = below(chance, number, holds, near)
        if first != (0, 1) == chance.bounds(number.base)[:2] and bool(number.value(0) == near):
            found.append(number.base)
        return answer

    LazyChance.below = watched  # type: ignore[assignment, method-assign]
    try:
        yield found
    finally:
        LazyChance.below = below  # type: ignore[method-assign]


def _has_an_empty_residual(draft: Draft) -> bool:
    """Returns whether target and draft are equal, up to rounding, where a token is tested."""
    case = draft.case
    rows = draft.target_probs.double()[case.parents]
    return bool(((rows - case.draft_probs.double()).clamp(min=0).sum(-1) < _EMPTY).any())


def _by_rounding(evidence: Sequence[tuple[Draft, Emitted]]) -> bool:
    """Returns whether the number after the last token is drawn only with the chance of a last digit."""
    for draft, law in evidence:
        vocab = draft.target.vocab_size
        drawn: dict[Text, dict[int, float]] = {}
        for text, chance in law.items():
            if text and text != RAISED:
                drawn.setdefault(text[:-1], {})[text[-1]] = chance
        for tokens in drawn.values():
            if vocab in tokens and not _is_a_last_digit(tokens[vocab] / sum(tokens.values()), _STEPS * vocab):
                return False
    return True


def _is_a_last_digit(chance: float, steps: int) -> bool:
    """Returns whether a chance is that of few steps of a float64, or of whole steps of a float32."""
    return chance * 2**53 <= steps or (
        chance * 2**24 <= steps and abs(chance * 2**24 - round(chance * 2**24)) < 1e-3 < chance * 2**24
    )
