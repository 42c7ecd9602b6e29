"""Keys and values of a transformers cache that another call filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer, DynamicSlidingWindowLayer

from draftwood.base.errors import InvalidInput


def given_keys(cache: Any, lengths: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
    """Returns keys and values `[rows, kv_heads, longest, head_dim]` of every layer, rows from slot 0 on.

    Args:
        cache: a `DynamicCache` of a batch that is padded on the left.
        lengths: tokens of every row, which stand in its last columns.

    Raises:
        InvalidInput: a cache of another kind, or of other rows.
    """
    name = type(cache).__name__
    if not isinstance(cache, Cache):
        raise InvalidInput(f"past_key_values is a {name}; give a DynamicCache.")
    columns, longest = cache.get_seq_length(), max(lengths, default=0)
    # Slot i of a row is its column `columns - length + i`; what follows a shorter row is padding.
    first = torch.tensor([columns - length for length in lengths])
    column = (first[:, None] + torch.arange(longest)).clamp_(max=max(columns - 1, 0))
    pieces = []
    layers: Sequence[Any] = cache.layers
    for number, layer in enumerate(layers):
        kind = type(layer)
        if kind not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise InvalidInput(
                f"Layer {number} of past_key_values is a {kind.__name__}, which is not read; give a "
                "DynamicCache of attention layers, or leave it out."
            )
        keys, values = layer.keys, layer.values
        if keys is None or values is None or layer.get_seq_length() != columns:
            raise InvalidInput(
                f"Layer {number} of past_key_values has read {layer.get_seq_length()} tokens and the first "
                f"one {columns}; leave it out."
            )
        if len(keys) != len(lengths):
            raise InvalidInput(
                f"past_key_values holds {len(keys)} rows and {len(lengths)} were given; give one text for "
                "each."
            )
        # A window has dropped columns that no later token sees.
        held = column - (columns - keys.shape[2])
        pieces.append((_picked(keys, held), _picked(values, held)))
    return pieces


def _picked(states: Tensor, index: Tensor) -> Tensor:
    """`states` `[rows, heads, columns, dim]` at the columns `index` `[rows, slots]`; before the first, 0."""
    index = index.to(states.device)[:, None, :, None]
    return states.take_along_dim(index.clamp(min=0), 2).masked_fill_(index < 0, 0)
