"""What a call of transformers' `generate` asks for, and the one sentence for what is not served.

Seen in transformers 5.23. A custom loop gets neither the `streamer` nor the `tokenizer` of the call, nor
learns which other kind of decoding was asked for, so both are read where `generate` keeps them: in its
frame. A test holds every name that is read here against the installed version.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.errors import InvalidInput

# What `generate` itself prepares for the model, and leaves the text as it is.
_PREPARED = frozenset({"attention_mask", "logits_to_keep", "use_cache", "return_dict"})
_INNER = ("output_attentions", "output_hidden_states")
_CACHES = frozenset({"past_key_values", "cache_params", "state", "past_buckets_states", "mems"})
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


@attrs.frozen(eq=False)
class Call:
    """What `generate` was called with, where a custom loop is not told.

    Attributes:
        streamer: or None.
        assistant_model: or None.
        arguments: the names of further arguments that are not None.
        virtual_tokens: whether PEFT puts learnt tokens in front of the text, behind the model's back.
    """

    streamer: Any = None
    assistant_model: Any = None
    arguments: frozenset[str] = frozenset()
    virtual_tokens: bool = False

    @classmethod
    def under_way(cls) -> Call:
        """The call of `generate` that is running; an empty one where none is."""
        from transformers import GenerationMixin

        code = getattr(GenerationMixin.generate, "__wrapped__", GenerationMixin.generate).__code__
        frame = _frame(lambda frame: frame.f_code is code)
        if frame is None:
            return cls()
        call_locals = frame.f_locals
        arguments = {name for name, value in call_locals["kwargs"].items() if value is not None}
        # PEFT calls the `generate` of the model below it, whose inputs it then prepares itself.
        wrapper = getattr(vars(call_locals["self"]).get("prepare_inputs_for_generation"), "__self__", None)
        learnt = getattr(getattr(wrapper, "active_peft_config", None), "is_prompt_learning", False)
        return cls(
            call_locals["streamer"], call_locals["assistant_model"], frozenset(arguments), bool(learnt)
        )


def hand_on_tokenizer() -> None:
    """Put the `tokenizer` of a running `generate` back among the arguments of a custom loop.

    `generate` drops it before it looks at the loop's signature, and then cannot build stop strings.
    """
    frame = _frame(lambda frame: frame.f_code.co_name == "_extract_generation_mode_kwargs")
    if frame is not None:
        generate_locals = frame.f_locals
        tokenizer = generate_locals.get("generation_mode_kwargs", {}).get("tokenizer")
        if tokenizer is not None:
            generate_locals["kwargs"]["tokenizer"] = tokenizer


def _frame(is_searched: Any) -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_searched(frame):
        frame = frame.f_back
    return frame


def refuse_unserved(
    call: Call, config: Any, model_kwargs: Mapping[str, Any], *, ids: Tensor, synced_gpus: bool
) -> None:
    """Refuse what would change the text or the output and cannot be served.

    Args:
        call: of `generate`.
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
    if call.virtual_tokens:
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
