"""The options of a call of transformers' `generate`, and one sentence for each that is not supported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood.errors import InvalidInput
from draftwood.generate_call import Call

# What `generate` itself prepares for the model, and leaves the text as it is.
_PREPARED = frozenset({"attention_mask", "logits_to_keep", "use_cache", "return_dict"})
_INNER = ("output_attentions", "output_hidden_states")
_CACHES = frozenset({"cache", "past_key_values", "cache_params", "state", "past_buckets_states", "mems"})
# Caches that leave the text as it is, and are draftwood's own business.
_EXACT_CACHES = frozenset({"dynamic", "dynamic_full", "offloaded", "offloaded_static", "static"})
# Options of other kinds of decoding, with what each is when it is off.
_OTHER_DECODING: Mapping[str, Sequence[Any]] = {
    "num_beams": (None, 1),
    "penalty_alpha": (None, 0),
    "dola_layers": (None,),
    "force_words_ids": (None,),
    "constraints": (None,),
    "prompt_lookup_num_tokens": (None,),
    "assistant_early_exit": (None,),
    "use_mtp": (None, False),
}


def refuse_unserved(
    call: Call, model: Any, config: Any, model_kwargs: Mapping[str, Any], *, ids: Tensor, synced_gpus: bool
) -> None:
    """Refuse options that would change the text or the output and are not supported.

    Args:
        call: of `generate`.
        model: whose `generate` was called.
        config: the prepared `GenerationConfig`.
        model_kwargs: what the model was to be called with.
        ids: the prompts `[rows, length]`.
        synced_gpus: whether ranks that have ended must go on with the others.

    Raises:
        InvalidInput: names the option and what to do without it.
    """
    options = [
        name
        for name, off in _OTHER_DECODING.items()
        if not any(getattr(config, name, None) == default for default in off)
    ]
    if "penalty_alpha" in options and (config.do_sample or not (config.top_k or 0) > 1):
        options.remove("penalty_alpha")  # `generate` does not look at it either
    if call.assistant_model is not None:
        options.append("assistant_model")
    if options:
        raise InvalidInput(
            f"custom_generate= decodes by draft trees, and {' and '.join(options)} asks for another way; "
            "leave one of the two out."
        )
    if config.token_healing:
        raise InvalidInput(
            "token_healing=True changes the prompt behind its mask; heal it first, with "
            "model.heal_tokens(ids, tokenizer)."
        )
    if _has_virtual_tokens(model):
        raise InvalidInput(
            "PEFT's prompt and prefix tuning put tokens in front of the text that no draft tree sees; decode "
            "without custom_generate=, or use an adapter of weights, such as LoRA."
        )
    if synced_gpus:
        raise InvalidInput("synced_gpus=True is not served by draft trees; decode without custom_generate=.")
    if config.return_dict_in_generate:
        for name in _INNER:
            if getattr(config, name, False) or model_kwargs.get(name):
                raise InvalidInput(
                    f"{name}=True is not served by draft trees, whose passes hold nodes that are dropped; "
                    "take them from one forward over the finished text."
                )
    if config.cache_implementation not in (None, *_EXACT_CACHES):
        raise InvalidInput(
            f"cache_implementation={config.cache_implementation!r} would change the text, and draft trees "
            "keep a cache of their own; leave it out."
        )
    _refuse_inputs(call, model_kwargs, ids)


def _has_virtual_tokens(model: Any) -> bool:
    """Whether PEFT puts learnt tokens in front of the text, without the model's knowledge."""
    # PEFT calls the `generate` of the model below it, whose inputs it then prepares itself.
    wrapper = getattr(vars(model).get("prepare_inputs_for_generation"), "__self__", None)
    return bool(getattr(getattr(wrapper, "active_peft_config", None), "is_prompt_learning", False))


def _refuse_inputs(call: Call, model_kwargs: Mapping[str, Any], ids: Tensor) -> None:
    for name in sorted(_CACHES & call.arguments):
        raise InvalidInput(
            f"{name} was given, and draft trees keep a cache of their own; give the whole text as input_ids."
        )
    # A model may be told of its inputs by a name that is only there for `generate`.
    served = _PREPARED | _CACHES | {"position_ids", *_INNER}
    for name in sorted(name for name, value in model_kwargs.items() if value is not None):
        if name not in served:
            raise InvalidInput(f"{name} is not served by draft trees; give the text as input_ids alone.")
    positions = model_kwargs.get("position_ids") if "position_ids" in call.arguments else None
    if positions is not None and not _counts_tokens(positions, model_kwargs.get("attention_mask"), ids):
        raise InvalidInput(
            "position_ids is not the count of the tokens before each, which is what draft trees go by; leave "
            "it out."
        )


def _counts_tokens(positions: Tensor, mask: Tensor | None, ids: Tensor) -> bool:
    seen = torch.ones_like(ids) if mask is None else (mask != 0).long()
    expected = (seen.cumsum(1) - 1).to(positions.device)
    if positions.shape not in (expected.shape, expected[:1].shape):
        return False
    return bool(((positions == expected) | (seen == 0).to(positions.device)).all())


def limits(criteria: Sequence[Any]) -> tuple[list[Any], int | None, frozenset[int]]:
    """What `generate` prepared as stopping criteria, by what the loop applies itself.

    Returns:
        The criteria that must be asked, the length at which every text ends (None without any), and the
        tokens that end one.
    """
    from transformers.generation import EosTokenCriteria, MaxLengthCriteria

    asked, lengths, ends = [], [], set()
    for criterion in criteria:
        if type(criterion) is MaxLengthCriteria:
            lengths.append(criterion.max_length)
        elif type(criterion) is EosTokenCriteria:
            ends.update(criterion.eos_token_id.tolist())
        else:
            asked.append(criterion)
    return asked, min(lengths, default=None), frozenset(ends)
