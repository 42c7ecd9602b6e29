"""Empty caches of a model, and rows of filled ones."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.utils import ModelOutput


def empty_cache(model: Any, *, prompt: int = 1) -> Cache:
    """Returns an empty cache for a text whose prompt has `prompt` tokens, the first root among them."""
    cache = DynamicCache(config=model.config)
    for layer in cache.layers:
        # Such a layer keeps the prompt in sight for ever.
        if hasattr(layer, "set_prefill_length"):
            layer.set_prefill_length(prompt)
    # All of the source stays in sight, whatever windows the decoder has.
    return EncoderDecoderCache(cache, DynamicCache()) if model.config.is_encoder_decoder else cache


def written_layers(cache: Cache) -> list[Any]:
    """Returns the layers of a cache that grow with a text, without those that keep a source."""
    layers: list[Any] = written_part(cache).layers
    return layers


def written_part(cache: Cache) -> Cache:
    """Returns the part of a cache that grows with a text."""
    part: Cache = getattr(cache, "self_attention_cache", cache)
    return part


def with_source(cache: Cache, layers: Sequence[tuple[Tensor, Tensor]]) -> EncoderDecoderCache:
    """Returns a cache of an encoder-decoder that writes to `cache`, with these keys of a source."""
    read = DynamicCache()
    for number, (keys, values) in enumerate(layers):
        read.update(keys, values, number)
    return EncoderDecoderCache(cache, read)


def columns_of(cache: Any, *, otherwise: int) -> int:
    """Returns the columns that a cache holds, padding included; `otherwise` if all layers are recurrent."""
    try:
        return int(cache.get_seq_length())
    except ValueError:
        return otherwise


def cache_of_row(cache: Cache, index: int, *, copies: int, device: torch.device) -> Cache:
    """Returns row `index` of `cache`, `copies` times, in new tensors; keys of a source are shared."""
    if isinstance(cache, EncoderDecoderCache):
        own = cache_of_row(cache.self_attention_cache, index, copies=copies, device=device)
        return EncoderDecoderCache(own, _shared_row(cache.cross_attention_cache, index, copies=copies))
    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in copied.layers:
        # Recurrent layers keep their states in dicts, which reordering would change under the original.
        vars(layer).update({name: dict(v) for name, v in vars(layer).items() if isinstance(v, dict)})
    copied.reorder_cache(torch.full((copies,), index, device=device))  # type: ignore[arg-type]
    for layer in copied.layers:
        # Reordering may leave out what is still empty, but its number of rows counts.
        for name in ("keys", "values"):
            states = getattr(layer, name, None)
            if states is not None and states.dim() > 1 and not states.numel() and len(states) != copies:
                setattr(layer, name, states.new_empty(copies, *states.shape[1:]))
    return copied


def _shared_row(cache: Cache, index: int, *, copies: int) -> Cache:
    """Row `index` of a cache that no pass changes."""
    shared = copy.copy(cache)
    shared.layers = [copy.copy(layer) for layer in cache.layers]
    for layer in shared.layers:
        for name in ("keys", "values"):
            if (states := getattr(layer, name, None)) is not None:
                setattr(layer, name, states[index : index + 1].expand(copies, *states.shape[1:]))
    return shared


def inputs_of_row(inputs: Any, index: int, *, copies: int = 1) -> Any:
    """Returns row `index` of every tensor in inputs of a forward, `copies` times, in new tensors.

    A tensor of one row is taken for all rows.
    """

    def row_of(tensor: Tensor) -> Tensor:
        if not tensor.dim():
            return tensor
        row = tensor if len(tensor) == 1 else tensor[index : index + 1]
        # Some models add to what the encoder gave in place.
        return row.repeat(copies, *[1] * (row.dim() - 1))

    return _with_tensors(inputs, row_of)


def copied_inputs(inputs: Any) -> Any:
    """Returns the same inputs of a forward in new tensors."""
    return _with_tensors(inputs, torch.clone)


def _with_tensors(inputs: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Inputs of a forward with every tensor in them changed."""
    if isinstance(inputs, Tensor):
        return change(inputs)
    if isinstance(inputs, Mapping):
        changed = {name: _with_tensors(value, change) for name, value in inputs.items()}
        return type(inputs)(**changed) if isinstance(inputs, ModelOutput) else changed
    if isinstance(inputs, tuple | list):
        return type(inputs)(_with_tensors(value, change) for value in inputs)
    return inputs
