"""Tells the texts that no sampler may emit, however rare they are."""

from __future__ import annotations

from draftwood.testing.samplers.continued_laws import Text
from draftwood.testing.samplers.sampler_cases import PROMPT, Draft


def forbidden(draft: Draft, text: Text) -> str:
    """Returns the fault of `text` whatever its probability, in words; empty if it has none."""
    most, target = draft.tree.depth + 1, draft.target
    if not 1 <= len(text) <= most:
        return f"emits {text}; a draft of depth {most - 1} gives 1 to {most} tokens"
    for position, token in enumerate(text):
        if not 0 <= token < target.vocab_size:
            return f"emits {text}; token {token} does not exist"
        before = text[:position]
        if not float(target.probs([*PROMPT, *before])[token]) > 0:
            return f"emits {text}, though the target gives token {token} probability 0 after {before}"
    return ""
