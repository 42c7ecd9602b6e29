"""The loss of a head at places of a text, for every kind of head."""

from __future__ import annotations

import torch
from torch import Tensor

from ..distil.rows import Rows
from ..distil.training import TrainingOptions, losses
from .known_text import KnownText


def place_loss(
    guess: Tensor,
    text: KnownText,
    places: Tensor,
    *,
    rows: Rows,
    weights: Tensor,
    options: TrainingOptions,
    target_ids: Tensor | None = None,
) -> Tensor:
    """The mean loss of guesses of what follows at places of a text.

    Args:
        guess: logits `[rows, places, vocab]`, or only of the tokens `target_ids`.
        text: as the target reads it.
        places: int64, ascending, on the CPU.
        rows: the text. Greedy rows teach their tokens after the prompt, and all others distributions.
        weights: of all places, `[rows, n]`.
        options: how distributions are compared.
        target_ids: the target's tokens that the head can propose; None: all.
    """
    # Places ascend, so places of real text come first.
    real = int((places < rows.prompt - 2).sum()) if rows.temperature == 0 else len(places)
    places = places.to(guess.device)
    wanted, weight = text.logits[:, places], weights[:, places]
    if target_ids is not None:
        # What the target would rather write than any token of the head's teaches nothing.
        weight = weight * torch.isin(wanted.argmax(-1), target_ids)
        wanted = wanted[..., target_ids]
    apart = losses(guess, wanted, real, options=options)
    return (weight * apart).sum() / weight.sum().clamp(min=1.0)
