"""The inputs of a call of transformers' `generate`: a text, or a prompt of more than tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.decoding.given_cache import GivenCache, filled_cache, tokens_before_rounding
from draftwood.decoding.kept_text import KeptText
from draftwood.integrations.generate_call import Call, says_something
from draftwood.integrations.inner_outputs import FLAGS
from draftwood.protocols.model_prompt import ModelPrompt, has_holes, placeholders_of

# What `generate` itself prepares for the model, and leaves the text as it is.
_PREPARED = frozenset({"attention_mask", "logits_to_keep", "use_cache", "return_dict"})
_CACHES = frozenset({"cache", "past_key_values", "cache_params", "state", "past_buckets_states", "mems"})
# Marks of the tokens that stand for images, videos or sound; 0 is text.
_TOKEN_TYPES = frozenset({"token_type_ids", "mm_token_type_ids", "moe_mm_token_type_ids"})
_ENCODED = "mm_encoder_outputs"


def prompt_of(
    call: Call,
    model: Any,
    model_kwargs: Mapping[str, Any],
    ids: Tensor,
    config: Any,
    *,
    source: Tensor | None,
    reads_padding: Callable[[], bool],
    decodes_text: Callable[[], bool],
) -> ModelPrompt | None:
    """Returns the prompt of a call that gives more than a text, or hides tokens of it; None for a text.

    An encoder-decoder always has one.

    Args:
        call: of `generate`.
        model: whose `generate` was called.
        model_kwargs: the arguments for the model's forward.
        ids: the prompts `[rows, length]`.
        config: the prepared `GenerationConfig`.
        source: the main input of the call, which an encoder has read.
        reads_padding: asked about padded texts; see `StateBackend`.
        decodes_text: asked about texts of models that also read images, videos or sound, and may read text in
            both directions: whether trees read a text as the model does.

    Raises:
        InvalidInput: names what was given, and cannot be read.
    """
    _refuse_caches(call, model_kwargs, config, columns=ids.shape[1])
    if getattr(model.config, "is_encoder_decoder", False):
        given = {name: value for name, value in call.arguments.items() if name in model_kwargs}
        return ModelPrompt.prepared(model, ids, dict(model_kwargs), given=given, source=source)
    more = _more_than_text(call, model, _without_marks_read(model_kwargs), ids)
    if _has_virtual_tokens(model):
        more.append("PEFT's learnt tokens")
    if not more and _cache_holds_images(model, model_kwargs, ids):
        more.append("a cache that holds images, videos or sound")
    if not more and takes_more_than_text(model) and not decodes_text():
        more.append("text that the model reads otherwise than it writes")
    mask = model_kwargs.get("attention_mask")
    if isinstance(mask, Tensor) and mask.dim() == 2 and not bool(mask.all()):
        if has_holes(mask):
            more.append("an attention_mask with holes")
        elif not more and reads_padding():
            more.append("padding that the model reads")
    if not more:
        return None
    if any(isinstance(value, KeptText) for value in model_kwargs.values()):
        raise InvalidInput(
            f"past_key_values of a call with draft trees continues a text, and {' and '.join(more)} was "
            "given too; leave one of the two out."
        )
    columns = ids.shape[1] if (embedded := model_kwargs.get("inputs_embeds")) is None else embedded.shape[1]
    whole = getattr(config, "_mask_length", columns) if mask is None else mask.shape[1]
    if (cache := filled_cache(model_kwargs)) is not None and whole != columns:
        raise InvalidInput(
            f"past_key_values holds a part of the {whole} tokens of attention_mask, and {columns} were "
            "given; give the whole text as input_ids."
        )
    if cache is not None and (held := GivenCache(cache, ()).columns) >= columns:
        raise InvalidInput(
            f"past_key_values holds {held} columns and the text has {columns}; give the whole text as "
            "input_ids, with at least one token more than the cache holds."
        )
    given = {name: value for name, value in call.arguments.items() if not hasattr(config, name)}
    return ModelPrompt.prepared(model, ids, dict(model_kwargs), given=given, source=source)


def _refuse_caches(call: Call, model_kwargs: Mapping[str, Any], config: Any, *, columns: int) -> None:
    """Refuse caches that cannot be read, or with which `generate()` would read something else."""
    from transformers import Cache

    for name in sorted(_CACHES & call.arguments.keys() & set(model_kwargs)):
        if not isinstance(model_kwargs[name], (KeptText, Cache)):
            given_as = type(model_kwargs[name]).__name__
            raise InvalidInput(
                f"{name} is a {given_as}; give a DynamicCache, or what a call of "
                "the same custom_generate= returned, and the whole text as input_ids."
            )
        if isinstance(model_kwargs[name], KeptText):
            continue
        if config.use_cache is False:
            raise InvalidInput(
                f"use_cache=False and {name} were given, with which generate() reads tokens twice; leave one "
                "of the two out."
            )
        exact = tokens_before_rounding(model_kwargs[name], columns)
        if exact is not None and getattr(config, "prefill_chunk_size", None):
            exact = 0  # it rounds one piece of the prompt before it reads the next
        if exact is not None and exact < config.max_length - columns:
            remedy = f"ask for up to {exact} new tokens, or leave it out" if exact else "leave it out"
            raise InvalidInput(
                f"{name} is quantised and would round what this call reads, which draft trees do not; "
                f"{remedy}."
            )


def _more_than_text(call: Call, model: Any, model_kwargs: Mapping[str, Any], ids: Tensor) -> list[str]:
    """Returns the names of inputs besides the tokens of a text that change what the model reads."""
    # A cache may have a name that is only there for `generate`.
    supported = _PREPARED | _CACHES | {"position_ids", *FLAGS}
    given = {key: value for key, value in model_kwargs.items() if key not in supported}
    # `generate` encodes images and drops them.
    given |= {f"encoded {kind}": value for kind, value in (given.pop(_ENCODED, None) or {}).items()}
    more = [
        name
        for name, value in given.items()
        if says_something(value)
        and not (name in _TOKEN_TYPES and takes_more_than_text(model) and not bool((value != 0).any()))
    ]
    positions = model_kwargs.get("position_ids") if "position_ids" in call.arguments else None
    if positions is not None and not _counts_tokens(positions, model_kwargs.get("attention_mask"), ids):
        more.append("position_ids")
    return sorted(more)


def _without_marks_read(model_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments without marks of images that the states of an earlier turn hold."""
    past = next((value for value in model_kwargs.values() if isinstance(value, KeptText)), None)
    read = past.get_seq_length() if past is not None and past.pictured else 0
    return {
        name: value
        for name, value in model_kwargs.items()
        if not (read and name in _TOKEN_TYPES and not bool((value[:, read:] != 0).any()))
    }


def _cache_holds_images(model: Any, model_kwargs: Mapping[str, Any], ids: Tensor) -> bool:
    """Returns whether a cache has read placeholders, after which positions need not be columns."""
    if filled_cache(model_kwargs) is None:
        return False
    return any(bool((ids == token).any()) for token in placeholders_of(model))


def takes_more_than_text(model: Any) -> bool:
    """Returns whether a transformers model reads images, videos or sound as well."""
    modalities = getattr(model, "input_modalities", "text")
    return not isinstance(modalities, str) and set(modalities) != {"text"}


def _counts_tokens(positions: Tensor, mask: Tensor | None, ids: Tensor) -> bool:
    """Returns whether each token's positions, `[rows, length]` or `[kinds, rows, length]`, are its number."""
    seen = torch.ones_like(ids) if mask is None else (mask != 0).long()
    expected = (seen.cumsum(1) - 1).to(positions.device)
    if positions.dim() not in (2, 3) or positions.shape[-2:] not in (expected.shape, expected[:1].shape):
        return False
    return bool(((positions == expected) | (seen == 0).to(positions.device)).all())


def _has_virtual_tokens(model: Any) -> bool:
    """Returns whether PEFT puts learnt tokens in front of the text, without the model's knowledge."""
    # PEFT calls the `generate` of the model below it, whose inputs it then prepares itself.
    wrapper = getattr(vars(model).get("prepare_inputs_for_generation"), "__self__", None)
    return bool(getattr(getattr(wrapper, "active_peft_config", None), "is_prompt_learning", False))
