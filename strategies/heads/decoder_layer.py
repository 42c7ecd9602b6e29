"""A head's decoder layers as its description gives them, for every kind of head."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from re import compile as pattern
from typing import Any

from draftwood import InvalidInput
from draftwood.strategies.heads.config import Latent
from draftwood.strategies.heads.keys import merged, switch, whole_number
from draftwood.strategies.heads.rope import rope_parameters
from draftwood.strategies.heads.sizes import check_layers

_NUMBERED = pattern(r"layers\.(\d+)\.")

LAYER_KEYS = frozenset(
    {
        "attention_bias", "attention_head_dim", "head_dim", "hidden_size", "intermediate_size", "layer_types",
        "max_position_embeddings", "max_window_layers", "num_attention_heads", "num_hidden_layers",
        "num_key_value_heads", "partial_rotary_factor", "qkv_bias", "rms_norm_eps", "rope_parameters",
        "rope_scaling", "rope_theta", "sliding_window", "tie_word_embeddings", "use_sliding_window",
        "vocab_size",
    }
)  # fmt: skip
"""Keys of a Llama-like or Qwen3-like layer, which every format reads."""


def described_layer(
    layer: Mapping[str, Any], *, where: str, types: Sequence[str] = ("full_attention",)
) -> dict[str, Any]:
    """Returns sizes, norm and rotation, as keywords of an `Eagle3Config` or a `BlockConfig`.

    Args:
        layer: the table that describes the layers.
        where: it is stored, for messages.
        types: of the layers, where a rotation is told by layer type.

    Raises:
        InvalidInput: a value that is missing or not supported, by name.
    """
    hidden, heads, inner, vocabulary = (
        whole_number(layer, key, where=where)
        for key in ("hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    )
    dim = whole_number(
        merged(layer, {"head_dim": layer.get("attention_head_dim")}, ("head_dim",), where=where),
        "head_dim",
        where=where,
        default=max(hidden // heads, 1),
    )
    longest = layer.get("max_position_embeddings")
    if longest is not None:
        longest = whole_number(layer, "max_position_embeddings", where=where)
    epsilon = layer.get("rms_norm_eps")
    if isinstance(epsilon, bool) or not isinstance(epsilon, int | float) or not 0 <= epsilon < 1:
        raise InvalidInput(f"rms_norm_eps is {epsilon!r:.60} in {where}; a head's norms need a number there.")
    return {
        "hidden_size": hidden,
        "vocab_size": vocabulary,
        "attention_heads": heads,
        "key_value_heads": whole_number(layer, "num_key_value_heads", where=where, default=heads),
        "head_dim": dim,
        "intermediate_size": inner,
        "norm_eps": float(epsilon),
        "rope": rope_parameters(layer, where=where, longest=longest, types=types),
        "max_positions": longest,
    }


def layer_count(layer: Mapping[str, Any], tensors: Collection[str], *, where: str) -> int:
    """Returns how many layers a head has.

    Some makers build one layer whatever `num_hidden_layers` says, which they copy from the target; they call
    it `midlayer`, and number the layers of a head that has several.

    Raises:
        InvalidInput: the tensors have another number of layers.
    """
    told = whole_number(layer, "num_hidden_layers", where=where, default=1)
    found = {int(match[1]) for name in tensors if (match := _NUMBERED.match(name))}
    if not found:
        return 1
    check_layers(told, tensors, where)
    if max(found) + 1 != told:
        raise InvalidInput(
            f"num_hidden_layers is {told} in {where}, but its weights are of {max(found) + 1} layer(s); "
            "one of them is another head's."
        )
    return told


LATENT_KEYS = frozenset(
    {"kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "rope_interleave", "v_head_dim"}
)
"""Keys of latent attention."""


def is_latent(tensors: Collection[str], prefix: str) -> bool:
    """Returns whether the layer whose tensors' names begin with `prefix` has latent attention."""
    return f"{prefix}self_attn.kv_a_proj_with_mqa.weight" in tensors


def latent(layer: Mapping[str, Any], tensors: Collection[str], prefix: str, *, where: str) -> Latent | None:
    """Returns the sizes of latent attention; None where the layer named by `prefix` has none.

    Raises:
        InvalidInput: a size that is missing, or a bias.
    """
    if not is_latent(tensors, prefix):
        return None
    if layer.get("attention_bias"):
        raise InvalidInput(
            f"attention_bias is {layer['attention_bias']!r:.20} in {where}; latent attention is read without "
            "biases: use another head."
        )
    queries = layer.get("q_lora_rank")
    plain = layer.get("qk_nope_head_dim")
    return Latent(
        query_rank=None if queries is None else whole_number(layer, "q_lora_rank", where=where),
        rank=whole_number(layer, "kv_lora_rank", where=where),
        plain_dim=0 if plain == 0 else whole_number(layer, "qk_nope_head_dim", where=where),
        rope_dim=whole_number(layer, "qk_rope_head_dim", where=where),
        value_dim=whole_number(layer, "v_head_dim", where=where),
        interleaved=switch(layer, "rope_interleave", where=where, default=True),
    )


def check_no_window(layer: Mapping[str, Any], *, where: str) -> None:
    """Refuse a layer that attends in a window; a width that no layer uses changes nothing.

    Raises:
        InvalidInput: the window, by what names it.
    """
    types, window = layer.get("layer_types"), layer.get("sliding_window")
    if types is not None and (not isinstance(types, list) or set(types) != {"full_attention"}):
        raise InvalidInput(
            f"The head in {where} attends in a window, since layer_types is {types!r:.60}; heads that see "
            "all of the text are read."
        )
    if layer.get("use_sliding_window") and window is not None and types is None:
        raise InvalidInput(
            f"The head in {where} attends in a window ({window!r:.60}), since use_sliding_window is on; "
            "heads that see all of the text are read."
        )


def biases(
    layer: Mapping[str, Any], tensors: Collection[str], prefix: str, *, where: str, strict: bool
) -> dict[str, Any]:
    """Returns which projections of attention have a bias.

    Args:
        layer: the table that describes the layers.
        tensors: names of the file's tensors.
        prefix: the beginning of the first layer's names.
        where: both are stored, for messages.
        strict: the maker's class has the biases that the description names; SpecForge's has none in any case,
            so that the tensors decide.

    Raises:
        InvalidInput: a bias that the description denies.
    """
    found = {
        name: f"{prefix}self_attn.{projection}_proj.bias" in tensors
        for name, projection in (("attention_bias", "q"), ("output_bias", "o"))
    }
    told = layer.get("attention_bias") or layer.get("qkv_bias")
    if told is not None and not isinstance(told, bool):
        raise InvalidInput(f"attention_bias is {told!r:.60} in {where}; give true or false.")
    if any(found.values()) and not told:
        raise InvalidInput(
            f"The weights in {where} hold biases of attention, and its description says that there are none; "
            "copy both again."
        )
    return dict.fromkeys(found, bool(told)) if strict else found
