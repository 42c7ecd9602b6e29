"""A model's own attention modules, with their keys kept by another than transformers' caches."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor
from transformers import AttentionInterface

from draftwood.strategies.heads.pairs import PairAttention

NAME = "draftwood_pairs"
"""What the attention implementation of a layer's config must be called."""


def _attended(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: PairAttention,
    *,
    scaling: float,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it; a `PairAttention` stands in the mask's place."""
    return attention_mask.attend(query, key, value, scaling), None


AttentionInterface.register(NAME, _attended)


@attrs.frozen(eq=False)
class AsCache:
    """`attention` as a layer sees a cache: it hands over its keys and values, and reads on with all."""

    attention: PairAttention

    def update(
        self, keys: Tensor, values: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        return self.attention.hold(keys, values)


class Kept:
    """Attention that notes what is kept of pairs, and lets them see nothing."""

    keys: Tensor
    values: Tensor

    def hold(self, keys: Tensor, values: Tensor, layer: int = 0) -> tuple[Tensor, Tensor]:
        self.keys, self.values = keys, values
        return keys, values

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        rows, heads, count, _ = queries.shape
        return queries.new_zeros(rows, count, heads, values.shape[-1])
