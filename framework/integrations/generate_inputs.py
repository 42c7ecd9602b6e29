"""The inputs of a call of transformers' `generate`: text is supported, everything else is refused by name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.decoding.kept_text import KeptText
from draftwood.integrations.generate_call import Call, says_something
from draftwood.integrations.inner_outputs import FLAGS

# What `generate` itself prepares for the model, and leaves the text as it is.
_PREPARED = frozenset({"attention_mask", "logits_to_keep", "use_cache", "return_dict"})
_CACHES = frozenset({"cache", "past_key_values", "cache_params", "state", "past_buckets_states", "mems"})
# Marks of the tokens that stand for images, videos or sound; 0 is text.
_TOKEN_TYPES = frozenset({"token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids"})
_ENCODED = "mm_encoder_outputs"
# What a caller calls these inputs, by transformers' names for them.
_KINDS: Mapping[str, re.Pattern[str]] = {
    kind: re.compile(pattern)
    for kind, pattern in {
        "videos": r"video|second_per_grid",
        "images": r"pixel|image|vision|patch|spatial_shapes|aspect_ratio|tgt_size|crop",
        "audio": r"audio|speech|input_features|feature_attention_mask|input_values",
        "encoder inputs": r"^(en|de)coder_(outputs|hidden|input|attention|position)|^cross_attention",
        "embeddings": r"embeds",
    }.items()
}


def refuse_other_inputs(call: Call, model: Any, model_kwargs: Mapping[str, Any], ids: Tensor) -> None:
    """Refuse inputs other than the tokens of a text.

    Args:
        call: of `generate`.
        model: whose `generate` was called.
        model_kwargs: the arguments for the model's forward.
        ids: the prompts `[rows, length]`.

    Raises:
        InvalidInput: names what was given.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise InvalidInput(
            f"{type(model).__name__} is an encoder-decoder, and its encoder inputs are not supported by "
            "draft trees; decode without custom_generate=, or use a decoder-only model."
        )
    from transformers import Cache, QuantizedCache

    for name in sorted(_CACHES & call.arguments & set(model_kwargs)):
        if not isinstance(model_kwargs[name], (KeptText, Cache)):
            given_as = type(model_kwargs[name]).__name__
            raise InvalidInput(
                f"{name} is a {given_as}; give a DynamicCache, or what a call of "
                "the same custom_generate= returned, and the whole text as input_ids."
            )
        if isinstance(model_kwargs[name], QuantizedCache):
            raise InvalidInput(
                f"{name} is a QuantizedCache, which would change the text, and draft trees keep a cache of "
                "their own; leave it out."
            )
    # `generate` encodes images and drops them. A cache may have a name that is only there for `generate`.
    supported = _PREPARED | _CACHES | {"position_ids", *FLAGS}
    given = {key: value for key, value in model_kwargs.items() if key not in supported}
    given |= {argument: True for argument in call.arguments if _kind(argument) and argument not in given}
    encoded = given.pop(_ENCODED, None) or {}
    given |= {f"encoded {modality}": value for modality, value in encoded.items()}
    for argument in sorted(key for key, value in given.items() if says_something(value)):
        if argument in _TOKEN_TYPES and takes_more_than_text(model):
            if not bool((given[argument] != 0).any()):
                continue
            raise InvalidInput(
                f"{argument} marks tokens that stand for images, videos or audio, and draft trees support "
                "text only; decode without custom_generate=."
            )
        if (kind := _kind(argument)) is not None:
            named = "" if argument.startswith("encoded ") else f" ({argument})"
            raise InvalidInput(
                f"{kind[0].upper()}{kind[1:]}{named} were given, and draft trees support text only; give the "
                "text as input_ids, or decode without custom_generate=."
            )
        raise InvalidInput(
            f"{argument} is not supported by draft trees; leave it out and give the text as input_ids."
        )
    positions = model_kwargs.get("position_ids") if "position_ids" in call.arguments else None
    if positions is not None and not _counts_tokens(positions, model_kwargs.get("attention_mask"), ids):
        raise InvalidInput(
            "position_ids differs from the number of tokens before each token, and draft trees only support "
            "that; leave it out."
        )


def takes_more_than_text(model: Any) -> bool:
    """Returns whether a transformers model reads images, videos or sound as well."""
    modalities = getattr(model, "input_modalities", "text")
    return not isinstance(modalities, str) and set(modalities) != {"text"}


def _kind(argument: str) -> str | None:
    """Returns the user's word for the input of this name; None for an input of another kind."""
    return next((kind for kind, pattern in _KINDS.items() if pattern.search(argument)), None)


def _counts_tokens(positions: Tensor, mask: Tensor | None, ids: Tensor) -> bool:
    """Returns whether each token's positions, `[rows, length]` or `[kinds, rows, length]`, are its number."""
    seen = torch.ones_like(ids) if mask is None else (mask != 0).long()
    expected = (seen.cumsum(1) - 1).to(positions.device)
    if positions.dim() not in (2, 3) or positions.shape[-2:] not in (expected.shape, expected[:1].shape):
        return False
    return bool(((positions == expected) | (seen == 0).to(positions.device)).all())
