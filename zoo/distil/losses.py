"""The losses by which a draft learns from its target at a position.

On real and on sampled text that is the overlap of the two distributions, the chance that a draft token is
accepted (Leviathan et al., arXiv 2211.17192, corollary 3.6). Its complement is their total variation
distance, and the loss is that, at two temperatures of the same logits, with some KL divergence, which teaches
where the two are far apart. On greedy text it is the target's token.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_CPU_ENTRIES, _GPU_ENTRIES = 2**18, 2**26  # of logits at once


def distances(draft_logits: Tensor, target_logits: Tensor, *, temperature: float) -> tuple[Tensor, Tensor]:
    """Total variation `1 - sum(min(T, D))` and `KL(T || D)` in nats, each float32 `[...]`.

    Args:
        draft_logits: `[..., vocab]`.
        target_logits: the same of the target.
        temperature: of both, above 0.
    """
    log_target = (target_logits.float() / temperature).log_softmax(-1)
    log_draft = (draft_logits.float() / temperature).log_softmax(-1)
    target = log_target.exp()
    variation = 1 - torch.minimum(log_draft.exp(), target).sum(-1)
    return variation, (target * (log_target - log_draft).nan_to_num(0.0)).sum(-1)


def greedy_surprise(draft_logits: Tensor, target_logits: Tensor) -> Tensor:
    """Nats by which the draft is surprised at the target's most likely token, float32 `[...]`."""
    best = target_logits.argmax(-1)
    losses = F.cross_entropy(draft_logits.float().flatten(0, -2), best.flatten(), reduction="none")
    return losses.view(best.shape)


def distribution_loss(
    draft_logits: Tensor,
    target_logits: Tensor,
    *,
    temperatures: tuple[float, ...],
    variation: float,
    divergence: float,
) -> Tensor:
    """`variation` times the total variation plus `divergence` times the KL divergence, the mean over
    `temperatures`, float32 `[...]`; logits are as in `distances`, and only the draft's get a gradient."""
    losses: Tensor = _DistributionLoss.apply(  # type: ignore[no-untyped-call]
        draft_logits.flatten(0, -2), target_logits.flatten(0, -2), temperatures, variation, divergence
    )
    return losses.view(draft_logits.shape[:-1])


class _DistributionLoss(torch.autograd.Function):
    """The loss with its gradient at once, a few positions at a time.

    What autograd would keep of every position is many times the logits; here it is only the gradient, and on
    a CPU a few positions stay in its cache. With q the draft's law at temperature t and q' its part below the
    target's p, the gradients by its logits are `q (sum(q') - [q < p]) / t` and `(q - p) / t`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        draft: Tensor,
        target: Tensor,
        temperatures: tuple[float, ...],
        variation: float,
        divergence: float,
    ) -> Tensor:
        losses = draft.new_zeros(len(draft), dtype=torch.float32)
        gradient = torch.empty_like(draft)
        size = (_GPU_ENTRIES if draft.is_cuda else _CPU_ENTRIES) // draft.shape[-1] or 1
        for start in range(0, len(draft), size):
            here = slice(start, start + size)
            ours, theirs = target[here].float(), draft[here].float()
            slope = torch.zeros_like(theirs)
            for temperature in temperatures:
                log_p, log_q = (logits.div(temperature).log_softmax(-1) for logits in (ours, theirs))
                p, q = log_p.exp(), log_q.exp()
                below = (q < p).to(q.dtype)
                covered = (q * below).sum(-1, keepdim=True)
                apart = 1 - torch.minimum(p, q).sum(-1)
                nats = (p * (log_p - log_q).nan_to_num(0.0)).sum(-1)
                losses[here] += variation * apart + divergence * nats
                slope += (q * (variation * (covered - below) + divergence) - divergence * p) / temperature
            gradient[here] = slope / len(temperatures)
        ctx.save_for_backward(gradient)
        return losses / len(temperatures)

    @staticmethod
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = ctx.saved_tensors
        return (gradient * outputs[0][:, None].to(gradient.dtype), None, None, None, None)
