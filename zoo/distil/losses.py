"""What a draft learns from its target at a position.

On sampled text that is the overlap of the two distributions, the chance that a draft token is accepted
(Leviathan et al., arXiv 2211.17192, corollary 3.6). Its complement is their total variation distance, and
the loss is just that, at two temperatures of the same logits. On greedy text it is the target's token.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def total_variation(draft_logits: Tensor, target_logits: Tensor, *, temperature: float) -> Tensor:
    """`1 - sum(min(T, D))` at a temperature above 0, float32 `[...]`, for logits `[..., vocab]`."""
    target = (target_logits.float() / temperature).softmax(-1)
    draft = (draft_logits.float() / temperature).softmax(-1)
    return 1 - torch.minimum(draft, target).sum(-1)


def greedy_surprise(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Nats by which the draft is surprised at the target's most likely token, float32 `[...]`."""
    best = target_logits.argmax(-1)
    return F.cross_entropy(draft_logits.float().flatten(0, -2), best.flatten(), reduction="none").view(
        best.shape
    )


def distillation_loss(
    draft_logits: Tensor,
    target_logits: Tensor,
    weights: Tensor,
    *,
    greedy: bool,
    temperatures: tuple[float, ...],
    variation: float,
) -> Tensor:
    """The weighted mean over positions of what a row teaches.

    Args:
        draft_logits: `[rows, positions, vocab]`.
        target_logits: the same of the target.
        weights: `[rows, positions]`.
        greedy: whether the rows are greedy text, which teaches the target's token. Sampled text teaches
            its distributions.
        temperatures: of those distributions, above 0, in equal parts.
        variation: the weight of sampled text beside greedy text.
    """
    if greedy:
        losses = greedy_surprise(draft_logits, target_logits)
    else:
        parts = [
            total_variation(draft_logits, target_logits, temperature=temperature)
            for temperature in temperatures
        ]
        losses = variation * torch.stack(parts).mean(0)
    return (weights * losses).sum() / weights.sum()
