"""The options of a call of transformers' `generate`, and one sentence for each that is not supported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftwood.base.errors import InvalidInput
from draftwood.integrations.generate_call import Call
from draftwood.integrations.inner_outputs import refuse_unread

# Caches that round what they keep. All others leave the text as it is: windows follow from the model.
_ROUNDING_CACHES = frozenset({"quantized"})
# Options of other kinds of decoding, each with its value when it is off.
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
    call: Call, model: Any, config: Any, model_kwargs: Mapping[str, Any], *, synced_gpus: bool
) -> None:
    """Refuse options that would change the text or the output and are not supported.

    Args:
        call: of `generate`.
        model: whose `generate` was called.
        config: the prepared `GenerationConfig`.
        model_kwargs: the arguments for the model's forward.
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
            f"custom_generate= decodes by draft trees, and {' and '.join(options)} asks for another "
            "decoding method; leave one of the two out."
        )
    if config.token_healing:
        raise InvalidInput(
            "token_healing=True changes the prompt but not its mask; heal it first, with "
            "model.heal_tokens(ids, tokenizer)."
        )
    if hooks := _adapters_by_row(model):
        for module, number in hooks:  # PEFT takes them away after a call that ends without an error, only
            del vars(module)["_forward_pre_hooks"][number]
        raise InvalidInput(
            "adapter_names= chooses an adapter for each row, and the rows of a draft tree's passes are "
            "not the rows of the call; switch with set_adapter() and call once per adapter."
        )
    if synced_gpus:
        raise InvalidInput(
            "synced_gpus=True is not supported by draft trees; decode without custom_generate=."
        )
    if config.cache_implementation in _ROUNDING_CACHES:
        raise InvalidInput(
            f"cache_implementation={config.cache_implementation!r} would change the text, and draft trees "
            "keep their own cache; leave it out."
        )
    refuse_unread(model, config, model_kwargs)


def _adapters_by_row(model: Any) -> list[tuple[Any, int]]:
    """Returns modules and numbers of the hooks by which PEFT gives each row of a batch its own adapter."""
    return [
        (module, number)
        for module in model.modules()
        for number, hook in vars(module)["_forward_pre_hooks"].items()
        if "adapter_names" in (getattr(hook, "keywords", None) or {})
    ]


def limits(criteria: Sequence[Any]) -> tuple[list[Any], int | None, frozenset[int]]:
    """Returns the stopping criteria that `generate` prepared, split into three parts.

    Returns:
        The criteria that must be called, the length at which every text ends (None without any), and the
        tokens that end a text; the loop applies the last two itself.
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
