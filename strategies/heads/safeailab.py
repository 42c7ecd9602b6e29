"""The flat files of SafeAILab, SpecForge, AngelSlim, ModelOpt and DeepSpec: one table for the whole head."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from draftwood import InvalidInput
from draftwood.strategies.heads.config import Eagle3Config, latent_keys
from draftwood.strategies.heads.copied import (
    has_plain_layers,
    is_draft_model,
    keys_of_target,
    without_target,
)
from draftwood.strategies.heads.decoder_layer import (
    LATENT_KEYS,
    LAYER_KEYS,
    biases,
    check_no_window,
    described_layer,
    is_latent,
    latent,
    layer_count,
)
from draftwood.strategies.heads.keys import (
    SWITCHES,
    Table,
    check_class,
    check_layers_like,
    layers_named,
    merged,
    switches,
    whole_number,
)

LAYER = "midlayer."
# Tap k is what leaves layer k, which layer k + 1 reads.
_TAPS, _NESTED_TAPS = "target_layer_ids", "eagle_aux_hidden_state_layer_ids"
_OUTER = Table(
    read=LAYER_KEYS
    | {
        *SWITCHES,
        _TAPS,
        _NESTED_TAPS,
        "draft_vocab_size",
        "eagle_config",
        "num_aux_hidden_states",
        "target_hidden_size",
    }
    | {"num_target_layers"},
    kind="EAGLE-3 heads",
)
_INNER = Table(
    read={
        *SWITCHES, _NESTED_TAPS, "draft_vocab_size", "parallel_draft_heads_num_layers", "target_hidden_size",
        "use_aux_hidden_state",
    },
    kind="EAGLE-3 heads",
)  # fmt: skip
# All of these have norms before their linear layers, SiLU and rotated queries and keys.
_LIKE_LLAMA = ("llama", "mistral", "phi3", "qwen2", "qwen3", "qwen3_moe")
_LIKE_DEEPSEEK = ("deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25")
OTHER_CLASSES: Mapping[str, str] = {"gemma": "Gemma's norms and scales"}
"""Classes of heads that compute something else, by a part of their name."""


def described(
    description: Mapping[str, Any],
    tensors: Collection[str],
    where: str,
    *,
    also: Collection[str] = (),
    taps: tuple[int, ...] | None = None,
) -> Eagle3Config:
    """Returns the head that a description and the names of its tensors speak of.

    Args:
        description: of an EAGLE-3 head.
        tensors: their names.
        where: both are stored, for messages.
        also: keys that the caller reads.
        taps: layers by their input, in place of those that the description names.

    Raises:
        InvalidInput: a key or value that is not supported, or one that is missing.
    """
    if not is_draft_model(description):
        check_class(description, others=OTHER_CLASSES, where=where)
    copied = keys_of_target(description)
    description = without_target(description)
    prefix = prefix_of(tensors)
    narrow = is_latent(tensors, prefix)
    read = _OUTER.read | frozenset(also) | (LATENT_KEYS if narrow else frozenset())
    kinds = _LIKE_DEEPSEEK if narrow else _LIKE_LLAMA
    plain = has_plain_layers(description)
    check_layers_like(description, kinds=kinds, plain=plain, like="Llama's", where=where)
    Table(read=read, kind=_OUTER.kind).check(description, where=where, copied=copied)
    inner = _nested(description.get("eagle_config"), where)
    check_no_window(description, where=where)
    layer = described_layer(description, where=where)
    both = merged(description, inner, (*SWITCHES, "draft_vocab_size", "target_hidden_size"), where=where)
    made = Eagle3Config(
        **layer,
        target_hidden_size=whole_number(
            both, "target_hidden_size", where=where, default=layer["hidden_size"]
        ),
        draft_vocab_size=whole_number(both, "draft_vocab_size", where=where, default=layer["vocab_size"]),
        taps=taps or _taps(description, inner, where),
        layers=layer_count(description, tensors, where=where),
        latent=latent(description, tensors, prefix, where=where),
        query_key_norm=f"{prefix}self_attn.q_norm.weight" in tensors,
        own_embedding="embed_tokens.weight" in tensors,
        own_head="lm_head.weight" in tensors,
        **biases(description, tensors, prefix, where=where, strict=False),
        **switches(both, where=where),
    )
    if description.get("num_aux_hidden_states") not in (None, made.tap_count):
        raise InvalidInput(
            f"num_aux_hidden_states is {description['num_aux_hidden_states']!r:.40} in {where}, which taps "
            f"{made.tap_count} layers; copy the head's description again."
        )
    return made


def prefix_of(tensors: Collection[str]) -> str:
    """Returns what the names of the first layer's tensors begin with."""
    first = "layers.0."
    return first if any(name.startswith(first) for name in tensors) else LAYER


def _nested(told: Any, where: str) -> Mapping[str, Any]:
    """The table in which ModelOpt and SpecForge name taps and switches."""
    if told is None:
        return {}
    if not isinstance(told, dict):
        raise InvalidInput(f"eagle_config is {told!r:.60} in {where}; give a table of keys.")
    _INNER.check(told, where=f"eagle_config of {where}")
    if told.get("use_aux_hidden_state", True) is not True:
        raise InvalidInput(
            f"use_aux_hidden_state is {told['use_aux_hidden_state']!r:.60} in {where}; heads that tap layers "
            "are read."
        )
    return told


def _taps(description: Mapping[str, Any], inner: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
    """Layers whose output is tapped are named in the usual places: one less than what reads them."""
    found = [
        layers
        for table, key in ((description, _TAPS), (inner, _NESTED_TAPS))
        if (layers := layers_named(table.get(key), key, where=where)) is not None
    ]
    if len(found) == 2 and found[0] != found[1]:
        raise InvalidInput(
            f"{_TAPS} and {_NESTED_TAPS} name different layers in {where}; copy the head's description again."
        )
    by_input = tuple(layer + 1 for layer in found[0]) if found else None
    either = layers_named(description.get(_NESTED_TAPS), _NESTED_TAPS, where=where)
    if either is None:
        return by_input
    if by_input is None:
        raise InvalidInput(
            f"{_NESTED_TAPS} is at the top of the description in {where}, where some makers name layers by "
            "their input and some by their output; move it into eagle_config, by output, or give the layers "
            "by input as -o taps=."
        )
    if either not in (by_input, found[0]):
        raise InvalidInput(
            f"{_NESTED_TAPS} at the top of the description in {where} names other layers than its other "
            "keys; copy the head's description again, or give the layers by input as -o taps=."
        )
    return by_input


def description_of(config: Eagle3Config, *, target: str) -> dict[str, Any]:
    """The description of a head.

    Raises:
        InvalidInput: one that this format cannot hold.
    """
    if config.query_key_norm:
        raise InvalidInput("SafeAILab's files hold no norms of queries and keys; write speculators' instead.")
    if config.taps is not None and 0 in config.taps:
        raise InvalidInput(
            "SafeAILab's files name layers by their output, so they cannot tap the embedding (layer 0); "
            "write speculators' instead."
        )
    taps = (
        {}
        if config.taps is None
        else {
            "eagle_config": {
                "use_aux_hidden_state": True,
                "eagle_aux_hidden_state_layer_ids": [tap - 1 for tap in config.taps],
            }
        }
    )
    partial = {key: config.rope[key] for key in ("partial_rotary_factor",) if key in config.rope}
    narrow: dict[str, Any] = {}
    if config.latent is not None:
        # null says that queries are made directly, and a missing key is a default of DeepSeek's class.
        narrow = {
            "q_lora_rank": None,
            **latent_keys(config.latent),
            "rope_interleave": config.latent.interleaved,
        }
    wide = (
        {}
        if config.target_hidden_size == config.hidden_size
        else {"target_hidden_size": config.target_hidden_size}
    )
    return {
        "architectures": [
            "LlamaForCausalLMEagle3" if config.latent is None else "Eagle3DeepseekV2ForCausalLM"
        ],
        "model_type": "llama" if config.latent is None else "deepseek_v3",
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        **wide,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.layers,
        "attention_bias": config.attention_bias,
        "num_attention_heads": config.attention_heads,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        **({} if config.max_positions is None else {"max_position_embeddings": config.max_positions}),
        "rope_theta": config.rope["rope_theta"],
        "rope_scaling": _scaling(config.rope),
        **partial,
        **narrow,
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        **taps,
        **{name: True for name in SWITCHES if getattr(config, name)},
    }


def _scaling(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    apart = ("rope_theta", "partial_rotary_factor")
    rest = {name: value for name, value in rope.items() if name not in apart}
    return None if rest.get("rope_type", "default") == "default" else rest
