"""Tells the texts that no sampler may emit, however rare they are."""

from __future__ import annotations

from draftwood.testing.samplers.continued_laws import Text
from draftwood.testing.samplers.sampler_cases import PROMPT, Draft


def forbidden(draft: Draft, text: Text) -> str:
    """Returns the fault of `text` whatever its probability, in words; empty if it has none."""
    most, target = draft.tree.depth + 1, draft.target
    if not 1 <= len(text) <= most:
        may = f"1 to {most} tokens" if most > 1 else "1 token"
        return f"emits {text}; a draft of depth {most - 1} gives {may}"
    for position, token in enumerate(text):
        if not 0 <= token < target.vocab_size:
            return f"emits {text}; token {token} does not exist"
        if not _is_possible(draft, text, position):
            return (
                f"emits {text}, though the target gives token {token} probability 0 after {text[:position]}"
            )
    return ""


def is_accepted_though_forbidden(draft: Draft, text: Text) -> bool:
    """Returns whether the first forbidden token of `text` has one after it, so that it was accepted."""
    known = text != () and all(0 <= token < draft.target.vocab_size for token in text)
    return known and not all(_is_possible(draft, text, position) for position in range(len(text) - 1))


def _is_possible(draft: Draft, text: Text, position: int) -> bool:
    return float(draft.target.probs([*PROMPT, *text[:position]])[text[position]]) > 0
