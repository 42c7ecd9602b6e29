"""The files of speculators (RedHatAI): a nested description of the layers, tables and a map of tokens."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from draftwood import InvalidInput
from draftwood.strategies.blocks import keys
from draftwood.strategies.blocks.config import FULL, SLIDING, BlockConfig
from draftwood.strategies.heads.decoder_layer import LAYER_KEYS, biases, described_layer
from draftwood.strategies.heads.keys import Table, switch, whole_number
from draftwood.strategies.heads.sizes import check_layers
from draftwood.strategies.heads.speculators import COMMON, VERSION, layer_table

KINDS = ("dflash", "dspark")
_TAPS = "aux_hidden_state_layer_ids"
_READ = COMMON | {_TAPS, "block_size", "mask_token_id", "sample_from_anchor", "sliding_window_non_causal"}
_LAYERS = Table(
    read=LAYER_KEYS - keys.TIED.keys(), only=keys.TIED, kind="layers of speculators' block drafters"
)


def described(description: Mapping[str, Any], tensors: Collection[str], where: str) -> BlockConfig:
    """Returns the configuration that the `config.json` of a `dflash` or `dspark` speculator describes.

    Layers that see the whole text see all slots; layers with a window see no later slots, unless
    `sliding_window_non_causal`.

    Raises:
        InvalidInput: a key that is not known or missing, or a value that is not supported, by name.
    """
    if (kind := description.get("speculators_model_type")) not in KINDS:
        raise InvalidInput(
            f"{where} describes a {kind!r:.60} head; 'dflash' and 'dspark' are read as blocks."
        )
    spark = kind == "dspark"
    read = _READ | keys.MARKOV_KEYS if spark else _READ
    Table(read=read, kind=f"speculators' {kind} drafters").check(description, where=where)
    told = layer_table(description, where)
    _LAYERS.check(told, where=f"transformer_layer_config of {where}")
    layers = _whole(told, where)
    check_layers(whole_number(layers, "num_hidden_layers", where=where), tensors, where)
    types, window = layers["layer_types"], layers.get("sliding_window")
    layer = described_layer(layers, where=where, types=types)
    width, vocabulary = layer["hidden_size"], layer["vocab_size"]
    if whole_number(description, "target_hidden_size", where=where, default=width) != width:
        raise InvalidInput(
            f"target_hidden_size is {description['target_hidden_size']} in {where}, and the head's width is "
            f"{width}; heads of the target's width are read."
        )
    slides = [one == SLIDING for one in types]
    if any(slides) and (type(window) is not int or window < 1):
        raise InvalidInput(f"sliding_window is {window!r:.60} in {where}; give its number of tokens.")
    free = switch(description, "sliding_window_non_causal", where=where)
    proposed = whole_number(
        description,
        "draft_vocab_size",
        where=where,
        # null is all of them, and a missing key is no size.
        default=vocabulary if "draft_vocab_size" in description else None,
    )
    corrected = (
        keys.markov(description, width, where, rank=256, confidence=True, with_markov=True) if spark else {}
    )
    return BlockConfig(
        **layer,
        **biases(layers, tensors, "layers.0.", where=where, strict=True),
        draft_vocab_size=None if proposed == vocabulary else proposed,
        target_layers=None,
        taps=_taps(description.get(_TAPS), where),
        block_size=whole_number(description, "block_size", where=where),
        mask_token_id=keys.mask_token(description, vocabulary, where),
        causal=tuple(one and not free for one in slides),
        windows=tuple(window if one else None for one in slides),
        window_before_root=any(slides),
        root_guesses=switch(description, "sample_from_anchor", where=where, default=spark),
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
        (config.gru, "corrections of Domino"),
        (config.causal != tuple(one and not free for one in slides), "such causal layers"),
        (any(slides) and not config.window_before_root, "windows that are counted from each slot"),
        (len(widths) > 1, "windows of several widths"),
        (config.attention_bias != config.output_bias, "drafters of which only some projections have a bias"),
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
            "attention_bias": config.attention_bias,
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
    layers = whole_number(told, "num_hidden_layers", where=where)
    types = keys.layer_types(told, layers, where)
    made: dict[str, Any] = Qwen3Config().to_dict()
    known = {key: made[key] for key in LAYER_KEYS & made.keys() - {"layer_types", "rope_parameters"}}
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
        raise InvalidInput(f"{_TAPS} is {ids!r:.60} in {where}; give a list of layers.")
    return tuple(ids)
