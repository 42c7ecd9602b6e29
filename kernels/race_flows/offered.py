"""The time of a node, and which of its tokens are offered; for kernels and reference alike."""

from __future__ import annotations

import torch
from torch import Tensor

OFFERED = 8192
"""Tokens of a vocabulary that are offered at a node; the others are one class at the end of the order."""

HEAVY = 128
"""Number of offered tokens that are the draft's heaviest among the others, eight for each of 16 siblings.

The remaining tokens are light compared with them, so sums over sets of these follow from sums of powers
without loss of precision.
"""

LATEST = 1e300


def is_whole(vocab: int) -> bool:
    """Returns whether all of a vocabulary is offered."""
    return vocab <= OFFERED


def columns_for(vocab: int, block: int = 1) -> int:
    """Returns how many columns the offered tokens have: a power of two of at least `block`."""
    return max(block, 1 << (min(vocab, OFFERED) - 1).bit_length())


def clock(drafts: Tensor, children: Tensor, there: Tensor, waits: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the drafts' mass without the drawn tokens, and the factor of their weights.

    That is the time at which the next token would have come; of a pair it is one over what the draft holds.
    A gap between two times is one of the waits over the mass that was left.

    Args:
        drafts: fp32 `[n, vocab]`.
        children: the drawn tokens in order, then any of them as padding, int64 `[n, most + 1]`.
        there: float64, 1 for those that were drawn, else 0.
        waits: float64, exponential times of rate 1 for each and one more, else 0; all 0 for pairs.

    Returns:
        float64 `[n]` both.
    """
    rest, whole = (of.sum(1, dtype=torch.float64) for of in (drafts.scatter(1, children, 0.0), drafts))
    chances = drafts.gather(1, children) * there
    left = (rest[:, None] + chances.flip(1).cumsum(1).flip(1)).clamp(min=1 / LATEST)
    time = (waits / left).sum(1).clamp(max=LATEST)
    # A sum that is made from the drawn tokens would tell of them in its last bit.
    return rest, torch.where(there.sum(1) == 2, 1 / whole, time)


def beside_likeliest(drafts: Tensor) -> Tensor:
    """Returns the mass of each of the drafts `[n, vocab]` without its likeliest token, float64 `[n]`."""
    return drafts.scatter(1, drafts.argmax(1, keepdim=True), 0.0).sum(1, dtype=torch.float64)


def offered(drafts: Tensor, targets: Tensor, factors: Tensor, size: int) -> tuple[Tensor, Tensor | None]:
    """The tokens that are offered, int64 `[n, size]` with -1 for none, and the draft of all others.

    Those by which most could be gained, and the heaviest others, as long as there are too many. Neither the
    drawn tokens nor the allowance of a node are looked at.

    Args:
        drafts, targets: fp32 `[n, vocab]`.
        factors: float64 `[n]`, as `clock` gives them.
        size: as `columns_for` gives it.
    """
    vocab = drafts.shape[1]
    if is_whole(vocab):
        token = torch.arange(size, device=drafts.device)
        return token.masked_fill(token >= vocab, -1).repeat(len(drafts), 1), None
    weights = drafts * factors.clamp(max=1e30).float()[:, None]
    worth = torch.minimum(weights, targets).topk(OFFERED - HEAVY, sorted=False).indices
    others = drafts.scatter(1, worth, 0.0)
    heavy = others.topk(HEAVY, sorted=False).indices
    return torch.cat([worth, heavy], 1), others.scatter_(1, heavy, 0.0)
