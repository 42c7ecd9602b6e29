"""Sums, differences and extremes over a vocabulary, by whichever way is quicker.

On a CPU numpy finds extremes and the tokens above a bound several times faster than torch, and compiled loops
do in one call what takes torch several.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from draftwood.kernels.machine_code import compiled
from draftwood.laws.proposals import check_distribution

Tokens = NDArray[np.int64]
"""Tokens `[n]` on the host."""

LOOPED = torch.float32, torch.float64
"""Numbers that compiled loops read."""


def total(weights: Float[Tensor, " vocab"]) -> float:
    """Their sum, in float32 or in float64 as they are."""
    return float(weights.sum(dtype=None if weights.dtype == torch.float64 else torch.float32))


def checked_total(p: Float[Tensor, " vocab"], what: str) -> float:
    """The sum of `p`, or `InvalidDistribution` as `check_distribution` raises it for `what`."""
    if p.is_cpu and p.dtype in LOOPED:
        below, whole = _totals(p.numpy())
    else:
        below, whole = float(p.clamp(max=0).sum()), total(p)
    if not (abs(whole - 1) <= 1e-3 and below == 0):
        check_distribution(p, what)
    return whole


def weight_of(weights: Float[Tensor, " vocab"], token: int) -> float:
    """Returns the weight of a token."""
    if weights.is_cpu and weights.dtype != torch.bfloat16:
        return float(weights.numpy()[token])  # in a third of the time
    return float(weights[token])


def largest(weights: Float[Tensor, " vocab"]) -> tuple[int, float]:
    """The token of the largest weight, the first of equals, and its weight."""
    array = _array(weights)
    token = int(weights.argmax() if array is None else array.argmax())
    return token, float(weights[token])


def above(weights: Float[Tensor, " vocab"], bound: float) -> Tokens:
    """The tokens whose weights exceed `bound`, in order."""
    array = _array(weights)
    if array is None:
        return np.asarray((weights > bound).nonzero().flatten().cpu().numpy())
    return np.flatnonzero(array > bound)


def gathered(weights: Float[Tensor, " vocab"], tokens: Tokens) -> NDArray[np.float64]:
    """The weights of `tokens` on the host."""
    array = _array(weights)
    if array is None:
        index = torch.from_numpy(tokens).to(weights.device)
        return np.asarray(weights[index].double().cpu().numpy())
    return array[tokens].astype(np.float64)


def put(weights: Float[Tensor, " vocab"], tokens: Tokens, values: NDArray[np.float64]) -> None:
    """Write `values` `[n]` for `tokens` into `weights`."""
    array = _array(weights)
    if array is None:
        weights[torch.from_numpy(tokens).to(weights.device)] = torch.from_numpy(values).to(weights)
    else:
        array[tokens] = values


@compiled
def _totals(weights: NDArray[Any]) -> tuple[float, float]:
    """The sum of the negative ones, and that of all, in one pass."""
    below, whole, zero = 0.0, 0.0, weights.dtype.type(0)
    for token in range(len(weights)):
        whole += weights[token]
        below += weights[token] if weights[token] < 0 else zero
    return below, whole


@compiled
def less(weights: NDArray[Any], taken: NDArray[Any], share: float, kept: NDArray[np.int64]) -> NDArray[Any]:
    """Returns max(`weights` - `share` `taken`, 0), and `weights` as they are for the tokens `kept`."""
    left, part, zero = np.empty_like(weights), weights.dtype.type(share), weights.dtype.type(0)
    for token in range(len(weights)):
        rest = weights[token] - part * taken[token]
        left[token] = zero if rest < zero else rest
    for token in kept:
        left[token] = weights[token]
    return left


def _array(weights: Tensor) -> NDArray[Any] | None:
    """`weights` as numpy sees them, None where it cannot."""
    if weights.device.type != "cpu" or weights.dtype == torch.bfloat16:
        return None
    return np.asarray(weights.numpy())
