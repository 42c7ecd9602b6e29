"""Tolerances of a proof for rounding, by the arithmetic that it runs in."""

from __future__ import annotations

import torch

EXACT = 1e-12
"""In float64, where a proof shows the rule itself."""

PRODUCTION = 1e-6
"""In float32, where it shows what decoding does: below what any sampling of texts could tell."""


def rounding(dtype: torch.dtype) -> float:
    """The largest difference of a probability that is rounding, for logits of `dtype`.

    Half precision is a model's own rounding of its logits; what follows is computed in float32.
    """
    return EXACT if dtype == torch.float64 else PRODUCTION
