"""Models whose probabilities a dtype of few bits holds exactly: no row loses its sum of 1 by rounding."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from draftwood.testing.models.toy import NextTokenModel

PARTS = {torch.bfloat16: 2**8, torch.float16: 2**11}
"""For each dtype of few bits, the largest number up to which it holds all whole numbers."""


def wide(dtype: torch.dtype) -> torch.dtype:
    """Returns the dtype of uniforms and logits where probabilities have `dtype`: float32 at least.

    Uniforms of few bits bias every sampler, and rounded logits have another law than rounded probabilities.
    """
    return torch.float32 if dtype in PARTS else dtype


def held_by(dtype: torch.dtype, model: NextTokenModel) -> NextTokenModel:
    """Returns the model, rounded so that `dtype` holds its probabilities exactly."""
    return RoundedModel(model.vocab_size, model=model, parts=PARTS[dtype]) if dtype in PARTS else model


@attrs.frozen(eq=False)
class RoundedModel(NextTokenModel):
    """A model whose probabilities are multiples of `1 / parts`, near the probabilities of another model.

    Attributes:
        model: the other model.
        parts: into which the probability of 1 is divided.
    """

    model: NextTokenModel = attrs.field(kw_only=True)
    parts: int = attrs.field(kw_only=True)

    def logits(self, text: Sequence[int]) -> Tensor:
        shares = self.model.probs(text) * self.parts
        whole = shares.floor()
        # The largest remainders get what is left of the sum.
        left = round(self.parts - float(whole.sum()))
        whole[(shares - whole).argsort(descending=True, stable=True)[:left]] += 1
        return (whole / self.parts).log()
