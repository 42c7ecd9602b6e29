"""Finds the known mistake that explains a policy's wrong law."""

from __future__ import annotations

import torch
from torch import Tensor

_SAME = 1e-7


def likely_mistake(drawn: Tensor, declared: Tensor, *, exists: float) -> str:
    """The mistake by which children come with the law `drawn` instead of `declared`; empty if none fits.

    Args:
        drawn: `[vocab]`, where the child exists.
        declared: `[vocab]`.
        exists: the chance that it does, in this context.
    """
    if exists < 1 - _SAME:
        return (
            "a drawn node was dropped for its own token, or for what its token led to; decide whether a "
            "node exists before its token is drawn."
        )
    if _same(drawn, _point(int(declared.argmax()), drawn)):
        return (
            "the most likely token was taken and declared as drawn; declare Deterministic, or draw with "
            "draw_children."
        )
    if float(drawn.max()) > 1 - _SAME:
        return (
            "the token does not depend on the policy's rng: take all chance from it, or declare "
            "Deterministic."
        )
    if _same(drawn, _normalised(declared.bfloat16().double())) or _same(
        drawn, _normalised(declared.half().double())
    ):
        return "it was drawn in half precision; draw from the tensor that the proposal names."
    power = _power(drawn, declared)
    if power is not None:
        return (
            f"the law was declared at another temperature than it was drawn at ({power:.3g} times); name the "
            "distribution that was drawn from."
        )
    missing = (drawn == 0) & (declared > 0)
    if bool(missing.any()) and _same(drawn, _normalised(declared.masked_fill(missing, 0))):
        return (
            f"the tokens {missing.nonzero().flatten().tolist()} were kept out of the draw; declare the law "
            "without them."
        )
    return "the proposal names another distribution than the children were drawn from."


def _same(one: Tensor, other: Tensor) -> bool:
    return float((one - other).abs().max()) <= _SAME


def _point(token: int, like: Tensor) -> Tensor:
    return torch.zeros_like(like).index_fill_(0, torch.tensor(token), 1)


def _normalised(p: Tensor) -> Tensor:
    total = p.sum()
    return p / total if float(total) > 0 else p


def _power(drawn: Tensor, declared: Tensor) -> float | None:
    """The a other than 1 with drawn = declared ** (1 / a), normalised."""
    live = (declared > 0) & (drawn > 0)
    if int(live.sum()) < 2 or bool(((drawn > 0) != (declared > 0)).any()):
        return None
    logs, other = drawn[live].log(), declared[live].log()
    first, last = int(other.argmin()), int(other.argmax())
    if float(other[last] - other[first]) < 1e-3:
        return None
    slope = float((logs[last] - logs[first]) / (other[last] - other[first]))
    if slope <= 0 or abs(slope - 1) < 1e-3:
        return None
    return 1 / slope if _same(drawn, _normalised(declared**slope)) else None
