"""Keys and values of a transformers cache that another call filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import cache_utils
from transformers.cache_utils import (
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

from draftwood.base.errors import InvalidInput
from draftwood.decoding.given_cache import rounds_at_times

# Layers whose keys are read; transformers' lowest supported version lacks some of these classes.
_KEYS = frozenset(
    {DynamicLayer, DynamicSlidingWindowLayer}
    | {
        getattr(cache_utils, name)
        for name in (
            "StaticLayer",
            "StaticSlidingWindowLayer",
            "LinearAttentionAndFullAttentionLayer",
            "LinearAttentionAndSlidingWindowAttentionLayer",
            "LinearAttentionAndStaticFullAttentionLayer",
            "LinearAttentionAndStaticSlidingWindowAttentionLayer",
        )
        if hasattr(cache_utils, name)
    }
)
_NO_KEYS = frozenset(
    getattr(cache_utils, name)
    for name in ("LinearAttentionLayer", "DummyLayer")
    if hasattr(cache_utils, name)
)


def given_keys(
    cache: Any, lengths: Sequence[int], *, seen: Tensor | None = None
) -> list[tuple[Tensor, Tensor] | None]:
    """Returns keys and values `[rows, kv_heads, longest, head_dim]` of every layer, rows from slot 0 on.

    A layer without attention has None.

    Args:
        cache: dynamic, static, or quantised by layers of `rounds_at_times`.
        lengths: tokens of every row.
        seen: bool `[rows, columns]`, where they are; default: in the last columns, after padding.

    Raises:
        InvalidInput: a cache of another kind, or of other rows.
    """
    name = type(cache).__name__
    if not isinstance(cache, Cache):
        raise InvalidInput(f"past_key_values is a {name}; give a DynamicCache.")
    layers: Sequence[Any] = cache.layers
    columns = next((int(layer.get_seq_length()) for layer in layers if _attends(layer)), 0)
    longest = max(lengths, default=0)
    if seen is None:
        seen = torch.arange(columns) >= columns - torch.tensor(lengths)[:, None]
    # A row's tokens go to its first slots, in their order; what follows a shorter row is padding.
    column = seen.int().sort(dim=1, descending=True, stable=True).indices[:, :longest]
    pieces: list[tuple[Tensor, Tensor] | None] = []
    for number, layer in enumerate(layers):
        kind = type(layer)
        if not (kind in _KEYS or kind in _NO_KEYS or rounds_at_times(layer)):
            raise InvalidInput(
                f"Layer {number} of past_key_values is a {kind.__name__}, which is not supported; give a "
                "DynamicCache of attention layers, or leave it out."
            )
        if not _attends(layer):
            pieces.append(None)
            continue
        keys, values, read = *_keys_and_values(layer), int(layer.get_seq_length())
        if keys is None or values is None or read != columns:
            raise InvalidInput(
                f"Layer {number} of past_key_values has read {read} tokens and the first one {columns}; "
                "leave it out."
            )
        _check_rows(len(keys), lengths)
        # A static layer has room for columns to come. A window has dropped columns that no later token sees.
        held = min(columns, keys.shape[2])
        index = column - (columns - held)
        pieces.append((_picked(keys[:, :, :held], index), _picked(values[:, :, :held], index)))
    return pieces


def is_own_kind(cache: Any, own: Cache) -> bool:
    """Returns whether every layer of a cache is of the class that the model's `own` empty cache has there."""
    return [*map(type, getattr(cache, "layers", ()))] == [*map(type, own.layers)]


def check_rows(cache: Cache, lengths: Sequence[int]) -> None:
    """Raise `InvalidInput` where a filled cache holds other rows than these."""
    for layer in cache.layers:
        states = [getattr(layer, "keys", None), *_states_of(layer)]
        for one in states:
            if one is not None and one.numel():
                _check_rows(len(one), lengths)


def refuse_states(cache: Any) -> None:
    """Raise `InvalidInput` for a cache whose recurrent states `given_keys` would leave out."""
    for number, layer in enumerate(getattr(cache, "layers", ())):
        if _states_of(layer):
            raise InvalidInput(
                f"Layer {number} of past_key_values is a {type(layer).__name__} with recurrent states, and "
                "the model keeps others; give a cache that the model made, or leave it out."
            )


def _states_of(layer: Any) -> list[Tensor]:
    found = [
        state
        for name in ("conv_states", "recurrent_states")
        for state in (getattr(layer, name, None) or {}).values()
    ]
    return [state for state in found if state is not None]


def _check_rows(held: int, lengths: Sequence[int]) -> None:
    if held != len(lengths):
        raise InvalidInput(
            f"past_key_values holds {held} rows and {len(lengths)} were given; give one text for each."
        )


def _attends(layer: Any) -> bool:
    """Returns whether a layer of a cache keeps keys and values; one of both kinds only if it has any."""
    mixes = isinstance(layer, LinearAttentionCacheLayerMixin)
    return (type(layer) in _KEYS or rounds_at_times(layer)) and not (mixes and layer.keys is None)


def _keys_and_values(layer: Any) -> tuple[Tensor | None, Tensor | None]:
    """The keys and values `[rows, heads, columns, dim]` that the next pass would read."""
    if not rounds_at_times(layer) or not layer.is_initialized:
        return layer.keys, layer.values
    pending = getattr(layer, "_pending_beam_idx", None)  # rows that a beam search has put in another order
    both = []
    for rounded, exact in ((layer._quantized_keys, layer.keys), (layer._quantized_values, layer.values)):
        before = layer._dequantize(rounded)
        before = before if pending is None else before.index_select(0, pending.to(before.device))
        both.append(torch.cat([before, exact], dim=2) if exact.numel() else before)
    return both[0], both[1]


def _picked(states: Tensor, index: Tensor) -> Tensor:
    """`states` `[rows, heads, columns, dim]` at the columns `index` `[rows, slots]`; before the first, 0."""
    index = index.to(states.device)[:, None, :, None]
    return states.take_along_dim(index.clamp(min=0), 2).masked_fill_(index < 0, 0)
