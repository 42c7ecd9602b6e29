"""Keys of a head's description: those that are read, those that change nothing, and all others refused."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from draftwood import InvalidInput

# What decides nothing of what a head computes once it is trained.
WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "dtype",
        "embed_requires_grad",
        "enable_sp_ulysses",
        "eos_token_id",
        "initializer_range",
        "max_window_layers",
        "pad_token_id",
        "pretraining_tp",
        "target_model_type",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
# What is read for one value alone: the others stand for layers that are not served.
ONLY: Mapping[str, tuple[Any, ...]] = {
    "additional_fc": (False, None),
    "attention_bias": (False, None),
    "hidden_act": ("silu", None),
    "mlp_bias": (False, None),
    "num_hidden_layers": (1,),
    "partial_rotary_factor": (1, None),
    "reuse_target_lm_head": (False, None),
    "tie_word_embeddings": (False, None),
    "use_sliding_window": (False, None),
}
SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
_WINDOW = ("sliding_window", "layer_types")


def check_keys(description: Mapping[str, Any], known: Collection[str], *, where: str) -> None:
    """Refuse what is not known, and values that are not served.

    Args:
        description: the keys.
        known: those that the caller reads.
        where: they stand, for messages.

    Raises:
        InvalidInput: an unknown key or a value that is not served, by name.
    """
    if (layers := description.get("num_hidden_layers", 1)) != 1:
        raise InvalidInput(f"The head in {where} has {layers!r:.20} layers; heads of one are read.")
    for key, value in description.items():
        if key in ONLY and value not in ONLY[key]:
            raise InvalidInput(
                f"{key} is {value!r:.60} in {where}; heads are read where it is {ONLY[key][0]!r} alone, so "
                "use another."
            )
        if key not in known and key not in ONLY and key not in WITHOUT_EFFECT and key not in _WINDOW:
            raise InvalidInput(
                f"{where} has the key {key!r:.60}, which is not known here and may change what the head "
                "computes; if it does not, take it out."
            )
    window, types = description.get("sliding_window"), description.get("layer_types")
    windowed = window is not None and description.get("use_sliding_window") is not False
    if windowed or (types is not None and set(types) != {"full_attention"}):
        raise InvalidInput(
            f"The head in {where} attends in a window ({window if windowed else types!r:.60}); heads that "
            "see all of the text are read."
        )


def whole_number(description: Mapping[str, Any], key: str, *, where: str, default: int | None = None) -> int:
    """The value of `key`, 1 or more; without `default` it must be there."""
    value = description.get(key)
    if value is None and default is not None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value < 2**31:
        raise InvalidInput(
            f"{key} is {value!r:.60} in {where}; a head needs a whole number of 1 or more there, of 31 bits."
        )
    return value


def switch(description: Mapping[str, Any], key: str, *, where: str) -> bool:
    """Whether `key` is on; off where it is missing."""
    value = description.get(key)
    if value is not None and not isinstance(value, bool):
        raise InvalidInput(f"{key} is {value!r:.60} in {where}; give true or false.")
    return bool(value)


def layers_named(value: Any, key: str, *, where: str) -> tuple[int, ...] | None:
    """Layers as whole numbers; None where `value` is."""
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(layer) is int for layer in value):
        raise InvalidInput(f"{key} is {value!r:.60} in {where}; give a list of layers.")
    return tuple(value)
