"""A model's own attention modules, with their keys kept by another than transformers' caches."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor
from transformers import AttentionInterface

from draftwood.strategies.heads.pairs import IndexedAttention, PairAttention

NAME = "draftwood_pairs"
"""What the attention implementation of a layer's config must be called."""


def _attended(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: PairAttention | AsMask,
    *,
    scaling: float,
    indices: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it; what attends is in the mask's place, `indices` are an indexer's."""
    if isinstance(attention_mask, AsMask):
        assert indices is not None
        return attention_mask.attention.attend_to(indices, query, key, value, scaling), None
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

    def update_indexer(self, keys: Tensor, layer_idx: int) -> Tensor:
        attention: Any = self.attention
        held: Tensor = attention.hold_index(keys)
        return held


@attrs.frozen(eq=False)
class AsMask:
    """`attention` as a layer with an indexer sees its mask `[rows, 1, n, slots]`, to take `[:, 0]` of it."""

    attention: IndexedAttention

    def __getitem__(self, _: Any) -> Tensor:
        return self.attention.seen


class Kept:
    """Attention that notes what is kept of pairs, and lets them see nothing."""

    def __init__(self) -> None:
        self.parts: list[Tensor] = []
        """Each `[rows, n, heads, width]`."""

    def hold(self, keys: Tensor, values: Tensor, layer: int = 0) -> tuple[Tensor, Tensor]:
        self.parts = [keys.transpose(1, 2), values.transpose(1, 2)]
        return keys, values

    @property
    def seen(self) -> Tensor:
        return self.parts[0].new_ones(1, 1, 1, dtype=torch.bool)

    def hold_index(self, keys: Tensor) -> Tensor:
        self.parts.append(keys.unsqueeze(2))
        return keys[:, :1]  # of one key scores are made, since none is attended to

    def attend_to(
        self, chosen: Tensor, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        return self.attend(queries, keys, values, scale)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        rows, heads, count, _ = queries.shape
        return queries.new_zeros(rows, count, heads, values.shape[-1])
