"""The files of speculators (RedHatAI): a nested description of the layers, tables and a map of tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from draftwood import InvalidInput
from draftwood.strategies.blocks import keys
from draftwood.strategies.blocks.config import FULL, SLIDING, BlockConfig
from draftwood.strategies.heads.speculators import VERSION

KINDS = ("dflash", "dspark")
_TAPS = "aux_hidden_state_layer_ids"
_READ = frozenset(
    {
        _TAPS, "block_size", "draft_vocab_size", "mask_token_id", "sample_from_anchor",
        "sliding_window_non_causal", "speculators_config", "speculators_model_type", "speculators_version",
        "target_hidden_size", "transformer_layer_config",
    }
)  # fmt: skip
_READ_OF_LAYERS = frozenset(
    {
        "head_dim", "hidden_size", "intermediate_size", "layer_types", "max_position_embeddings",
        "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps",
        "rope_parameters", "rope_scaling", "rope_theta", "sliding_window", "use_sliding_window", "vocab_size",
    }
)  # fmt: skip


def described(description: Mapping[str, Any], tensors: Collection[str], where: str) -> BlockConfig:
    """Returns the configuration that the `config.json` of a `dflash` or `dspark` speculator describes.

    Layers that see the whole text see all slots; those of a window see no slots behind them, unless
    `sliding_window_non_causal`.

    Raises:
        InvalidInput: a key that is not known or missing, or a value that is not served, by name.
    """
    if (kind := description.get("speculators_model_type")) not in KINDS:
        raise InvalidInput(
            f"{where} describes a {kind!r:.60} head; 'dflash' and 'dspark' are read as blocks."
        )
    spark = kind == "dspark"
    keys.check_keys(description, _READ | keys.MARKOV_KEYS if spark else _READ, where)
    told = description.get("transformer_layer_config")
    if not isinstance(told, dict):
        raise InvalidInput(f"transformer_layer_config is {told!r:.60} in {where}; a head needs one.")
    keys.check_keys(told, _READ_OF_LAYERS, where)
    layer = _whole(told, where)
    width, vocabulary = (keys.size(layer, key, where) for key in ("hidden_size", "vocab_size"))
    if keys.size(description, "target_hidden_size", where, default=width) != width:
        raise InvalidInput(
            f"target_hidden_size is {description['target_hidden_size']} in {where}, and the head's width is "
            f"{width}; heads of the target's width are read."
        )
    types, window = layer["layer_types"], layer.get("sliding_window")
    slides = [one == SLIDING for one in types]
    if any(slides) and (type(window) is not int or window < 1):
        raise InvalidInput(f"sliding_window is {window!r:.60} in {where}; its layers need one.")
    free = keys.flag(description, "sliding_window_non_causal", where)
    proposed = keys.size(description, "draft_vocab_size", where)
    corrected = (
        keys.markov(description, width, where, rank=256, confidence=True, beside=True) if spark else {}
    )
    return BlockConfig(
        vocab_size=vocabulary,
        draft_vocab_size=None if proposed == vocabulary else proposed,
        hidden_size=width,
        intermediate_size=keys.size(layer, "intermediate_size", where),
        attention_heads=keys.size(layer, "num_attention_heads", where),
        key_value_heads=keys.size(layer, "num_key_value_heads", where),
        head_dim=keys.size(layer, "head_dim", where),
        norm_eps=float(layer["rms_norm_eps"]),
        max_positions=keys.size(layer, "max_position_embeddings", where),
        target_layers=None,
        taps=_taps(description.get(_TAPS), where),
        block_size=keys.size(description, "block_size", where),
        mask_token_id=keys.mask_token(description, vocabulary, where),
        causal=tuple(one and not free for one in slides),
        windows=tuple(window if one else None for one in slides),
        window_before_root=any(slides),
        rope=keys.rope(layer, where),
        root_guesses=keys.flag(description, "sample_from_anchor", where, default=spark),
        own_embedding="embed_tokens.weight" in tensors,
        own_head="lm_head.weight" in tensors,
        **corrected,
    )


def description_of(config: BlockConfig, *, target: str) -> dict[str, Any]:
    """The `config.json` of a head for the model `target`, of which `described` makes `config` again.

    Raises:
        InvalidInput: one that this format cannot hold.
    """
    slides = [window is not None for window in config.windows]
    free = not any(config.causal)
    widths = {window for window in config.windows if window is not None}
    for wrong, what in (
        (config.causal != tuple(one and not free for one in slides), "such causal layers"),
        (any(slides) and not config.window_before_root, "windows that are counted from each slot"),
        (len(widths) > 1, "windows of several widths"),
    ):
        if wrong:
            raise InvalidInput(f"speculators' files hold no {what}; write z-lab's instead.")
    kind = "dspark" if config.markov_rank or config.confidence else "dflash"
    described: dict[str, Any] = {
        "architectures": ["DSparkSpeculator" if kind == "dspark" else "DFlashSpeculator"],
        "speculators_model_type": kind,
        "speculators_version": VERSION,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.depths}],
            "verifier": {"name_or_path": target, "architectures": []},
        },
        "transformer_layer_config": {
            "model_type": "qwen3",
            "hidden_act": "silu",
            "attention_bias": False,
            "vocab_size": config.vocab_size,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_attention_heads": config.attention_heads,
            "num_key_value_heads": config.key_value_heads,
            "head_dim": config.head_dim,
            "rms_norm_eps": config.norm_eps,
            "max_position_embeddings": config.max_positions,
            "num_hidden_layers": len(config.causal),
            "rope_parameters": dict(config.rope),
            "layer_types": [SLIDING if one else FULL for one in slides],
            "use_sliding_window": any(slides),
            "sliding_window": widths.pop() if widths else None,
        },
        "draft_vocab_size": config.proposed,
        "block_size": config.block_size,
        "target_hidden_size": config.hidden_size,
        _TAPS: list(config.taps),
        "mask_token_id": config.mask_token_id,
        "sliding_window_non_causal": any(slides) and free,
        "sample_from_anchor": config.root_guesses,
    }
    if kind == "dspark":
        described |= keys.markov_described(
            config.hidden_size, config.markov_rank, config.markov_type, config.confidence
        )
    return described


def _whole(told: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The description of the layers with what was left out, which is its class's default."""
    from transformers import Qwen3Config

    if (kind := told.get("model_type", "qwen3")) != "qwen3":
        raise InvalidInput(f"model_type is {kind!r:.60} in {where}; layers of qwen3 are read.")
    layers = keys.size(told, "num_hidden_layers", where)
    types = told.get("layer_types")
    if types is not None and (
        not isinstance(types, list) or len(types) != layers or not set(types) <= {SLIDING, FULL}
    ):
        raise InvalidInput(
            f"layer_types is {types!r:.80} in {where}; it names {FULL} or {SLIDING} for each of {layers} "
            "layers."
        )
    made: dict[str, Any] = Qwen3Config().to_dict()
    known = {key: made[key] for key in _READ_OF_LAYERS & made.keys() - {"layer_types", "rope_parameters"}}
    whole = {**known, **told}
    if types is None:
        # The class itself makes them of the window's keys.
        slides = bool(whole.get("use_sliding_window")) and whole.get("sliding_window") is not None
        first = told.get("max_window_layers", made["max_window_layers"])
        whole["layer_types"] = [SLIDING if slides and one >= first else FULL for one in range(layers)]
    return whole


def _taps(ids: Any, where: str) -> tuple[int, ...]:
    """Layers named by what they read."""
    if not isinstance(ids, list) or not ids or not all(type(one) is int and one >= 0 for one in ids):
        raise InvalidInput(f"{_TAPS} is {ids!r:.60} in {where}; it is a list of layers.")
    return tuple(ids)
