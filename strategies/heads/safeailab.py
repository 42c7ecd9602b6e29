"""The files of SafeAILab and SpecForge: a Llama-like description, and the layer as `midlayer`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from draftwood import InvalidInput
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.rope import rope_parameters
from draftwood.strategies.heads.switches import (
    SWITCHES,
    check_keys,
    layers_named,
    switch,
    whole_number,
)

LAYER = "midlayer."
_KNOWN = {
    *SWITCHES,
    "draft_vocab_size",
    "eagle_config",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "max_position_embeddings",
    "model_type",
    "num_attention_heads",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_scaling",
    "rope_theta",
    "target_hidden_size",
    "vocab_size",
}
_NESTED = {"eagle_aux_hidden_state_layer_ids", "use_aux_hidden_state"}


def described(description: Mapping[str, Any], tensors: Collection[str], where: str) -> Eagle3Config:
    """The head that a description and the names of its tensors speak of.

    Raises:
        InvalidInput: a key or value that is not served, or one that is missing.
    """
    check_keys(description, _KNOWN, where=where)
    if (kind := description.get("model_type", "llama")) != "llama":
        raise InvalidInput(f"model_type is {kind!r:.60} in {where}; layers like Llama's are read.")
    hidden, heads = (
        whole_number(description, key, where=where) for key in ("hidden_size", "num_attention_heads")
    )
    vocabulary = whole_number(description, "vocab_size", where=where)
    epsilon = description.get("rms_norm_eps")
    if not isinstance(epsilon, float):
        raise InvalidInput(f"rms_norm_eps is {epsilon!r:.60} in {where}; a head's norms need a number there.")
    longest = description.get("max_position_embeddings")
    return Eagle3Config(
        hidden_size=hidden,
        target_hidden_size=whole_number(description, "target_hidden_size", where=where, default=hidden),
        vocab_size=vocabulary,
        draft_vocab_size=whole_number(description, "draft_vocab_size", where=where, default=vocabulary),
        attention_heads=heads,
        key_value_heads=whole_number(description, "num_key_value_heads", where=where, default=heads),
        head_dim=whole_number(description, "head_dim", where=where, default=hidden // heads),
        intermediate_size=whole_number(description, "intermediate_size", where=where),
        norm_eps=epsilon,
        rope=rope_parameters(description, where=where),
        max_positions=longest if type(longest) is int else None,
        taps=_taps(description.get("eagle_config"), where),
        own_embedding="embed_tokens.weight" in tensors,
        **{name: switch(description, name, where=where) for name in SWITCHES},
    )


def _taps(nested: Any, where: str) -> tuple[int, ...] | None:
    """Layers whose output is tapped are named here: one less than what reads them."""
    if nested is None:
        return None
    if not isinstance(nested, dict) or set(nested) - _NESTED:
        unknown = sorted(set(nested) - _NESTED) if isinstance(nested, dict) else [nested]
        raise InvalidInput(f"eagle_config holds {unknown[0]!r:.60} in {where}, which is not known here.")
    if nested.get("use_aux_hidden_state", True) is not True:
        raise InvalidInput(
            f"use_aux_hidden_state is {nested['use_aux_hidden_state']!r:.60} in {where}; heads that tap "
            "layers are read."
        )
    name = "eagle_aux_hidden_state_layer_ids"
    layers = layers_named(nested.get(name), name, where=where)
    return None if layers is None else tuple(layer + 1 for layer in layers)


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
    wide = (
        {}
        if config.target_hidden_size == config.hidden_size
        else {"target_hidden_size": config.target_hidden_size}
    )
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": config.hidden_size,
        **wide,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.attention_heads,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        **({} if config.max_positions is None else {"max_position_embeddings": config.max_positions}),
        "rope_theta": config.rope["rope_theta"],
        "rope_scaling": _scaling(config.rope),
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size,
        **taps,
        **{name: True for name in SWITCHES if getattr(config, name)},
    }


def _scaling(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    rest = {name: value for name, value in rope.items() if name != "rope_theta"}
    return None if rest.get("rope_type", "default") == "default" else rest
