"""The files of speculators (RedHatAI): switches beside a nested description, and the layer as `layers.0`."""

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

LAYER = "layers.0."
VERSION = "0.9.0"  # whose files these are
_TAPS = "eagle_aux_hidden_state_layer_ids"
_KNOWN = {
    *SWITCHES,
    _TAPS,
    "draft_vocab_size",
    "speculators_config",
    "speculators_model_type",
    "speculators_version",
    "target_hidden_size",
    "transformer_layer_config",
}
_LAYER_KEYS = {
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
    "vocab_size",
}


def described(
    description: Mapping[str, Any], tensors: Collection[str], where: str, *, also: Collection[str] = ()
) -> Eagle3Config:
    """The head that a description and the names of its tensors speak of.

    Args:
        description: of an EAGLE-3 head.
        tensors: their names.
        where: they stand, for messages.
        also: keys that the caller reads.

    Raises:
        InvalidInput: a key or value that is not served, or one that is missing.
    """
    if (algorithm := description.get("speculators_model_type")) != "eagle3":
        raise InvalidInput(f"{where} describes a {algorithm!r:.60} head; 'eagle3' is read.")
    check_keys(description, {*_KNOWN, *also}, where=where)
    layer = description.get("transformer_layer_config")
    if not isinstance(layer, dict):
        raise InvalidInput(f"transformer_layer_config is {layer!r:.60} in {where}; a head needs one.")
    if "norm_before_residual" not in description:
        raise InvalidInput(
            f"{where} does not say norm_before_residual, for which programs assume either; write it in as "
            "`draftwood check-head` finds it."
        )
    layer = _with_defaults(layer, where)
    check_keys(layer, _LAYER_KEYS, where=where)
    hidden, heads = (whole_number(layer, key, where=where) for key in ("hidden_size", "num_attention_heads"))
    vocabulary = whole_number(layer, "vocab_size", where=where)
    return Eagle3Config(
        hidden_size=hidden,
        target_hidden_size=whole_number(description, "target_hidden_size", where=where, default=hidden),
        vocab_size=vocabulary,
        draft_vocab_size=whole_number(description, "draft_vocab_size", where=where),
        attention_heads=heads,
        key_value_heads=whole_number(layer, "num_key_value_heads", where=where, default=heads),
        head_dim=whole_number(layer, "head_dim", where=where, default=hidden // heads),
        intermediate_size=whole_number(layer, "intermediate_size", where=where),
        norm_eps=float(layer["rms_norm_eps"]),
        rope=rope_parameters(layer, where=where),
        max_positions=layer.get("max_position_embeddings"),
        taps=layers_named(description.get(_TAPS), _TAPS, where=where),
        query_key_norm=layer["model_type"] == "qwen3",
        own_embedding="embed_tokens.weight" in tensors,
        **{name: switch(description, name, where=where) for name in SWITCHES},
    )


def _with_defaults(layer: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns a layer's description with the defaults of its class where it leaves something out."""
    from transformers import LlamaConfig, Qwen3Config

    classes: dict[Any, Any] = {"llama": LlamaConfig, "qwen3": Qwen3Config}
    kind = layer.get("model_type", "llama")
    if kind not in classes:
        raise InvalidInput(
            f"model_type is {kind!r:.60} in {where}; layers of {' and '.join(classes)} are read."
        )
    made = classes[kind]().to_dict()
    needed = _LAYER_KEYS & made.keys() - {"rope_parameters", "head_dim"}
    return {**{key: made[key] for key in needed}, **layer}


def description_of(config: Eagle3Config, *, target: str) -> dict[str, Any]:
    """The description of a head for the model `target`."""
    kind = "qwen3" if config.query_key_norm else "llama"
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 5}],
            "verifier": {"name_or_path": target, "architectures": []},
        },
        "transformer_layer_config": {
            "model_type": kind,
            "hidden_act": "silu",
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_hidden_layers": 1,
            "num_attention_heads": config.attention_heads,
            "num_key_value_heads": config.key_value_heads,
            "head_dim": config.head_dim,
            "rms_norm_eps": config.norm_eps,
            "rope_parameters": dict(config.rope),
            "vocab_size": config.vocab_size,
            "tie_word_embeddings": False,
            "attention_bias": False,
            **({} if config.max_positions is None else {"max_position_embeddings": config.max_positions}),
        },
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        **({} if config.taps is None else {_TAPS: list(config.taps)}),
        **{name: getattr(config, name) for name in SWITCHES},
    }
