"""The files of speculators (RedHatAI): switches next to a nested description, and the layer as `layers.0`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from draftwood import InvalidInput
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.decoder_layer import (
    LAYER_KEYS,
    biases,
    check_no_window,
    described_layer,
    layer_count,
)
from draftwood.strategies.heads.keys import SWITCHES, Table, layers_named, switches, whole_number

LAYER = "layers.0."
VERSION = "0.9.0"  # whose files these are
COMMON = frozenset(
    {"draft_vocab_size", "speculators_config", "speculators_model_type", "target_hidden_size"}
    | {"tie_word_embeddings", "transformer_layer_config"}
)
"""Keys at the top of every file of speculators."""
_TAPS = "eagle_aux_hidden_state_layer_ids"
_KNOWN = COMMON | {*SWITCHES, _TAPS}
_ABOUT = Table(
    read={
        "accept_tolerance", "algorithm", "default_proposal_method", "proposal_methods", "speculative_tokens",
        "verifier", "verifier_accept_k",
    },
    kind="speculators' heads",
)  # fmt: skip
_OF_LAYER = Table(read=LAYER_KEYS, kind="layers of EAGLE-3 heads")


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
    if (algorithm := description.get("speculators_model_type")) != "eagle3":
        raise InvalidInput(f"{where} describes a {algorithm!r:.60} head; 'eagle3' is read.")
    Table(read=_KNOWN | frozenset(also), kind="EAGLE-3 heads").check(description, where=where)
    told = layer_table(description, where)
    if "norm_before_residual" not in description:
        raise InvalidInput(
            f"{where} does not say norm_before_residual, and programs assume either value; write the one "
            "into it that `draftwood check-head` finds."
        )
    layer = _with_defaults(told, where)
    inside = f"transformer_layer_config of {where}"
    _OF_LAYER.check(layer, where=inside)
    check_no_window(told, where=where)
    made = described_layer(layer, where=where)
    return Eagle3Config(
        **made,
        target_hidden_size=whole_number(
            description, "target_hidden_size", where=where, default=made["hidden_size"]
        ),
        draft_vocab_size=whole_number(
            description,
            "draft_vocab_size",
            where=where,
            # null is all of them, and a missing key is no size.
            default=made["vocab_size"] if "draft_vocab_size" in description else None,
        ),
        taps=taps or layers_named(description.get(_TAPS), _TAPS, where=where),
        layers=layer_count(told, tensors, where=where),
        query_key_norm=layer["model_type"] == "qwen3",
        own_embedding="embed_tokens.weight" in tensors,
        own_head="lm_head.weight" in tensors,
        **biases(layer, tensors, LAYER, where=where, strict=True),
        **switches(description, where=where),
    )


def layer_table(description: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the table that describes the layers, of EAGLE-3 heads and block drafters alike.

    The table of the algorithm and its target, which changes nothing of what a head computes, is checked too.
    """
    about = description.get("speculators_config")
    if about is not None:
        if not isinstance(about, dict):
            raise InvalidInput(f"speculators_config is {about!r:.60} in {where}; give a table of keys.")
        _ABOUT.check(about, where=f"speculators_config of {where}")
    told = description.get("transformer_layer_config")
    if not isinstance(told, dict):
        raise InvalidInput(f"transformer_layer_config is {told!r:.60} in {where}; give a table of keys.")
    return told


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
    apart = {"rope_parameters", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers"}
    if "head_dim" in layer or kind == "llama":
        apart |= {"head_dim"}  # a Llama's is its width by its heads
    needed = LAYER_KEYS & made.keys() - apart
    return {"model_type": kind, **{key: made[key] for key in needed}, **layer}


def description_of(config: Eagle3Config, *, target: str) -> dict[str, Any]:
    """Returns the description of a head for the model `target`.

    Raises:
        InvalidInput: one that this format cannot hold.
    """
    if config.latent is not None:
        raise InvalidInput("speculators' files hold no latent attention; write SafeAILab's instead.")
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
            "num_hidden_layers": config.layers,
            "num_attention_heads": config.attention_heads,
            "num_key_value_heads": config.key_value_heads,
            "head_dim": config.head_dim,
            "rms_norm_eps": config.norm_eps,
            "rope_parameters": dict(config.rope),
            "vocab_size": config.vocab_size,
            "tie_word_embeddings": False,
            "attention_bias": config.attention_bias or config.output_bias,
            **({} if config.max_positions is None else {"max_position_embeddings": config.max_positions}),
        },
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        **({} if config.taps is None else {_TAPS: list(config.taps)}),
        **{name: getattr(config, name) for name in SWITCHES},
    }
