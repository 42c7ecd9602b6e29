"""Attentions and hidden states of a finished text, step by step as `generate()` returns them."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from draftwood.base.errors import InvalidInput

FLAGS = {"output_attentions": "attentions", "output_hidden_states": "hidden_states"}
"""Options of `generate()`, and the field of its output that each fills."""

_OF_DECODER = {
    "output_attentions": ("decoder_attentions", "cross_attentions"),
    "output_hidden_states": ("decoder_hidden_states",),
}


def asked(config: Any) -> list[str]:
    """Returns the options of `FLAGS` that a prepared `GenerationConfig` asks for."""
    return [flag for flag in FLAGS if config.return_dict_in_generate and getattr(config, flag, None)]


def refuse_unread(model: Any, config: Any, model_kwargs: Mapping[str, Any]) -> None:
    """Refuse attentions and hidden states that passes over a finished text do not give.

    Args:
        model: whose `generate` was called.
        config: the prepared `GenerationConfig`.
        model_kwargs: what the model was to be called with.

    Raises:
        InvalidInput: names the option and what to do without it.
    """
    if not (flags := asked(config)):
        return
    from transformers import DynamicCache, EncoderDecoderCache

    _, cache = _cache_of(model_kwargs)
    cache = cache.self_attention_cache if isinstance(cache, EncoderDecoderCache) else cache
    if config.use_cache is False and cache is None:
        return
    if config.prefill_chunk_size is not None or type(cache) is not DynamicCache:
        raise InvalidInput(
            f"{flags[0]}=True is supported with a dynamic cache or none; leave out "
            "cache_implementation, prefill_chunk_size and past_key_values of draft trees."
        )
    linear = any("Linear" in base.__name__ for layer in cache.layers for base in type(layer).__mro__)
    if linear or getattr(model, "_is_stateful", False):
        raise InvalidInput(
            f"{flags[0]}=True is not supported for recurrent layers, which {type(model).__name__} has; take "
            "them from one forward pass over the finished text."
        )


def inner_outputs(
    model: Any,
    sequences: Tensor,
    config: Any,
    model_kwargs: Mapping[str, Any],
    *,
    prompt: int,
    columns: int | None = None,
) -> dict[str, tuple[tuple[Tensor | None, ...] | None, ...]]:
    """Returns attentions and hidden states by field, a tuple of layers for every step.

    The model reads the prompt, then all new tokens but the last in one pass, which is cut into steps of one
    token; without a cache it reads the whole text for every step. A given cache is not changed.

    Args:
        model: whose `generate` was called.
        sequences: the finished texts `[rows, length]`, padding included.
        config: the prepared `GenerationConfig`.
        model_kwargs: what the model was to be called with.
        prompt: columns of `sequences` before the first new token.
        columns: of what the model reads before it, where these are embeddings; default: `prompt`.

    Returns:
        Only the fields that were asked for. Attentions are `[rows, heads, queries, keys]`, hidden states
        `[rows, queries, width]`; the first step has the queries of the prompt, later ones have one, or
        without a cache one more each.
    """
    if not (flags := asked(config)):
        return {}
    kwargs, new = dict(model_kwargs), sequences.shape[1] - prompt - 1
    columns = prompt if columns is None else columns
    both = model.config.is_encoder_decoder
    fields = [field for flag in flags for field in (_OF_DECODER[flag] if both else (FLAGS[flag],))]
    name, given = _cache_of(kwargs)
    cache = None if given is None else _apart(given)
    if cache is not None:
        kwargs[name] = cache
    fresh = None if cache is None else columns - cache.get_seq_length()
    first = _read(model, sequences[:, :prompt], kwargs, next_sequence_length=fresh, is_first_iteration=True)
    attention = getattr(model.config, "_attn_implementation", "eager")
    if any("attentions" in field and first.get(field) for field in fields) and attention != "eager":
        raise InvalidInput(
            f"output_attentions=True changes the text that {type(model).__name__} writes with {attention} "
            "attention; load it with attn_implementation='eager'."
        )
    steps = {field: [_layers(first, field)] for field in fields}
    for query in range(new):
        kwargs = model._update_model_kwargs_for_generation(first, kwargs, is_encoder_decoder=both)
        if cache is None:  # then every step of generate() reads the whole text
            whole = _read(model, sequences[:, : prompt + query + 1], kwargs)
            for field, found in steps.items():
                found.append(_layers(whole, field))
    if new and cache is not None:
        later, windows = (
            _read(model, sequences[:, :-1], kwargs, next_sequence_length=new),
            _windows(model, cache),
        )
        for query in range(new):
            keys = [min(columns + query + 1, window or columns + new) for window in windows]
            for field, found in steps.items():
                # What an encoder has read has the same columns in every step.
                own = field in ("attentions", "decoder_attentions")
                layers = _layers(later, field)
                seen = keys if own else [None] * len(layers or ())
                found.append(
                    layers and tuple(_cut(*each, query, of=new) for each in zip(layers, seen, strict=False))
                )
    encoded = model_kwargs.get("encoder_outputs") if both else None
    read = {f"encoder_{FLAGS[flag]}": encoded.get(FLAGS[flag]) for flag in flags if encoded is not None}
    return {field: tuple(found) for field, found in steps.items()} | read


def _layers(output: Any, field: str) -> tuple[Tensor | None, ...] | None:
    """The layers of a field of an output; without eager attention there may be none, as in `generate()`."""
    layers = output.get(field)
    return None if layers is None else tuple(layers)


def _apart(given: Any) -> Any:
    """A copy of a cache whose updates do not write to the tensors of the cache."""
    from transformers import EncoderDecoderCache

    if isinstance(given, EncoderDecoderCache):
        return EncoderDecoderCache(_apart(given.self_attention_cache), _apart(given.cross_attention_cache))
    cache = copy.copy(given)
    cache.layers = [copy.copy(layer) for layer in given.layers]
    return cache


def _read(model: Any, ids: Tensor, kwargs: Mapping[str, Any], **step: Any) -> Any:
    """Returns the model's output for a step of `generate()`."""
    return model(**model.prepare_inputs_for_generation(ids, **step, **kwargs), return_dict=True)


def _cut(layer: Tensor | None, keys: int | None, query: int, *, of: int) -> Tensor | None:
    """One query of a layer's `[..., queries, width]`, and of its width the keys up to its own where given."""
    if layer is None:
        return None
    one = layer[..., query : query + 1, :]
    if keys is None:
        return one
    stop = layer.shape[-1] - of + query + 1
    return one[..., stop - keys : stop]


def _cache_of(model_kwargs: Mapping[str, Any]) -> tuple[str, Any]:
    """The cache that the model was to be called with, after the name of its argument."""
    from transformers import Cache

    found = ((name, value) for name, value in model_kwargs.items() if isinstance(value, Cache))
    return next(found, ("", None))


def _windows(model: Any, cache: Any) -> list[int | None]:
    """Returns each layer's window, or None for all tokens; a layer without keys has that of its type."""
    text = model.config.get_text_config(decoder=True)
    cache = getattr(cache, "self_attention_cache", cache)
    own = [getattr(layer, "sliding_window", None) for layer in cache.layers]
    types = getattr(text, "layer_types", None) or [None] * len(own)
    own += [None] * (len(types) - len(own))
    of_type = {kind: window for kind, window in zip(types, own, strict=True) if window is not None}
    return [window or of_type.get(kind) for kind, window in zip(types, own, strict=True)]
