"""Greedy texts of two forms of one pass may part where two tokens are equally likely within rounding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

TIE = 0.05
"""Share of the largest logit by which another may be smaller and count as equal: a few steps of bfloat16."""


def check_ties(mine: Sequence[int], theirs: Sequence[int], scores_at: Callable[[int], Tensor]) -> None:
    """Raises `AssertionError` where two texts part and the plain model clearly prefers its own token.

    Args:
        mine: token ids of a drafted text, its prompt included.
        theirs: token ids of the plain text, with the same prompt.
        scores_at: the plain model's scores `[vocab]` of the token at a place in `theirs`.
    """
    parted = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=False)) if a != b), None)
    if parted is None:
        return
    scores = scores_at(parted).float()
    gap = float(scores.max() - scores[mine[parted]])
    assert gap <= TIE * float(scores.max().abs().clamp(min=1)), (parted, gap)
