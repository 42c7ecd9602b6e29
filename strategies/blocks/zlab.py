"""The files of z-lab, of DeepSpec and of SpecForge: a Qwen3-like description, with additional keys."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from draftwood import InvalidInput
from draftwood.strategies.blocks import keys
from draftwood.strategies.blocks.config import FULL, SLIDING, BlockConfig
from draftwood.strategies.heads.decoder_layer import LAYER_KEYS, biases, described_layer
from draftwood.strategies.heads.keys import (
    Table,
    check_class,
    check_layers_like,
    merged,
    named_classes,
    switch,
    whole_number,
)
from draftwood.strategies.heads.sizes import check_layers

_ANYWHERE = (
    keys.MARKOV_KEYS
    | keys.GRU_KEYS
    | {"block_size", "mask_token_id", "num_target_layers", "target_hidden_size", "target_layer_ids"}
    | {"sample_from_anchor", "target_num_hidden_layers"}
    | keys.REPEATS
)
_OUTER = Table(
    read=(LAYER_KEYS - keys.TIED.keys()) | _ANYWHERE | {*keys.TABLES, "draft_vocab_size", "is_causal"},
    only=keys.TIED,
    kind="block drafters",
)
_INNER = Table(
    read=_ANYWHERE | {"causal", "causal_head", "swa_window_size", "use_swa"},
    only={"projector_type": ("dspark", "dflash", "domino", None)},
    kind="block drafters",
)
_LIKE_QWEN3 = ("dflash", "llama", "qwen2", "qwen3", "qwen3_moe")
_CLASSES = (
    "DFlashDraftModel",
    "DominoDraftModel",
    "DSparkDraftModel",
    "Qwen3DSparkModel",
    "QwenDFlashDraftModel",
)
_LAYERS_OF_TARGET = "target_num_hidden_layers"
_OF_MODELOPT = {"shift_label"}
_USUAL = {"rms_norm_eps": 1e-6, "max_position_embeddings": 32768}


def described(description: Mapping[str, Any], tensors: Collection[str], where: str) -> BlockConfig:
    """Returns the configuration that the `config.json` of a DFlash, JetSpec or DSpark drafter describes.

    Raises:
        InvalidInput: a key that is not known or missing, or a value that is not supported, by name.
    """
    check_class(description, others=keys.OTHER_CLASSES, where=where)
    plain = any(name in _CLASSES for name in named_classes(description))
    check_layers_like(description, kinds=_LIKE_QWEN3, plain=plain, like="Qwen3's", where=where)
    inner = _inner(description, where)
    _OUTER.check(description, where=where)
    _INNER.check(inner, where=f"dflash_config of {where}")
    both = merged(description, inner, sorted(_ANYWHERE), where=where)
    layers = whole_number(description, "num_hidden_layers", where=where)
    check_layers(layers, tensors, where)
    types = keys.layer_types(description, layers, where)
    told = {**{key: value for key, value in description.items() if value is not None}}
    layer = described_layer({**_USUAL, **told}, where=where, types=types or (FULL,))
    width, vocabulary = layer["hidden_size"], layer["vocab_size"]
    taps_told = both.get("target_layer_ids") is not None
    # TorchSpec's key; its num_target_layers is the number of taps.
    of_target = "num_target_layers" if both.get(_LAYERS_OF_TARGET) is None else _LAYERS_OF_TARGET
    target_layers = (
        None if taps_told and both.get(of_target) is None else whole_number(both, of_target, where=where)
    )
    corrected = keys.markov(both, width, where, rank=0, confidence=False, with_markov=False)
    kinds = {str(inner.get("projector_type")), *_kinds(description)}
    if "domino" in kinds:
        corrected |= keys.gru(both, where)
    elif found := keys.GRU_KEYS & both.keys() - (_OF_MODELOPT if "dspark" in kinds else set()):
        raise InvalidInput(
            f"{where} has the key {min(found)!r}, which is one of Domino drafters, and does not say that it "
            "is one (projector_type); copy its description again."
        )
    else:
        if not switch(both, "shift_label", where=where, default=True):
            raise InvalidInput(
                f"shift_label is False in {where}, which describes a DSpark drafter; only drafters whose "
                "root's slot guesses are read, so use another."
            )
        # DSpark draws the first token from the root's slot, and DFlash from the first mask's.
        corrected["root_guesses"] = "dspark" in kinds or corrected["markov_rank"] > 0
    told_first = switch(both, "sample_from_anchor", where=where, default=corrected["root_guesses"])
    if "domino" in kinds and told_first != corrected["root_guesses"]:
        raise InvalidInput(
            f"sample_from_anchor is {told_first} and shift_label {corrected['root_guesses']} in {where}; "
            "copy its description again."
        )
    corrected["root_guesses"] = told_first
    taps = _taps(both.get("target_layer_ids"), layers, target_layers, where)
    if of_target == _LAYERS_OF_TARGET and both.get("num_target_layers") not in (
        None,
        len(taps),
        target_layers,
    ):
        raise InvalidInput(
            f"num_target_layers is {both['num_target_layers']!r:.20} in {where}, which taps {len(taps)} of "
            f"{target_layers} layers; copy its description again."
        )
    mask = keys.mask_token(both, vocabulary, where)
    keys.check_repeats(both, taps, mask, where)
    proposed = whole_number(description, "draft_vocab_size", where=where, default=vocabulary)
    features = whole_number(both, "target_hidden_size", where=where, default=width)
    return BlockConfig(
        **layer,
        **biases(description, tensors, "layers.0.", where=where, strict=True),
        target_hidden_size=None if features == width else features,
        target_layers=target_layers,
        taps=taps,
        draft_vocab_size=None if proposed == vocabulary else proposed,
        block_size=keys.block_size(both, where),
        mask_token_id=mask,
        causal=_causal(description, inner, types, layers, where),
        windows=_windows(description, inner, types, layers, where),
        own_embedding="embed_tokens.weight" in tensors,
        own_head="lm_head.weight" in tensors,
        **corrected,
    )


def _inner(description: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the nested tables as one; SGLang's files repeat `dflash_config` as `dspark_config`."""
    tables = {name: description[name] for name in keys.TABLES if description.get(name) is not None}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise InvalidInput(f"{name} is {table!r:.60} in {where}; give a table of keys.")
    first, second = (tables.get(name, {}) for name in keys.TABLES)
    return {**first, **second, **merged(first, second, sorted(first.keys() | second.keys()), where=where)}


def _kinds(description: Mapping[str, Any]) -> list[str]:
    """The projectors that classes of the description stand for."""
    names = [name.lower() for name in named_classes(description)]
    return [kind for kind in ("dspark", "domino") if any(kind in name for name in names)]


def description_of(config: BlockConfig) -> dict[str, Any]:
    """The `config.json` of which `described` makes `config` again.

    Raises:
        InvalidInput: one that this format cannot hold.
    """
    sliding = [window for window in config.windows if window is not None]
    by_type = tuple(window is not None for window in config.windows)
    for wrong, what in (
        (config.proposed != config.vocab_size, "drafters of fewer tokens than the target's"),
        (config.window_before_root and sliding, "windows that are counted from the root"),
        (config.causal != by_type and len(set(config.causal)) > 1, "layers that are causal one by one"),
        (len(set(sliding)) > 1, "windows of several widths"),
        (config.markov_rank and not config.root_guesses, "corrections whose root's slot guesses nothing"),
        (config.attention_bias != config.output_bias, "drafters of which only some projections have a bias"),
        (config.target_layers is None, "drafters that do not say how many layers their target has"),
    ):
        if wrong:
            raise InvalidInput(f"z-lab's files hold no {what}; write speculators' instead.")
    described: dict[str, Any] = {
        "architectures": ["DSparkDraftModel" if config.root_guesses else "DFlashDraftModel"],
        "model_type": "qwen3",
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_attention_heads": config.attention_heads,
        "num_key_value_heads": config.key_value_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "max_position_embeddings": config.max_positions,
        "attention_bias": config.attention_bias,
        "num_hidden_layers": len(config.causal),
        "num_target_layers": config.target_layers,
        "block_size": config.block_size,
        "rope_parameters": dict(config.rope),
        "dflash_config": {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": [tap - 1 for tap in config.taps],
        },
    }
    if sliding:
        kinds = [FULL if window is None else SLIDING for window in config.windows]
        described |= {"layer_types": kinds, "sliding_window": sliding[0]}
    if config.causal != by_type:
        described["dflash_config"]["causal"] = config.causal[0]
    if config.gru:
        described["architectures"] = ["DominoDraftModel"]
        described["dflash_config"] |= {
            "projector_type": "domino",
            "gru_hidden_dim": config.gru,
            "emb_dim": config.gru_inner,
            "pure_draft_prefix_len": config.gru_from,
            "shift_label": config.root_guesses,
        }
    elif config.markov_rank or config.confidence:
        described |= keys.markov_described(
            config.hidden_size, config.markov_rank, config.markov_type, config.confidence
        )
    return described


def _taps(ids: Any, layers: int, target_layers: int | None, where: str) -> tuple[int, ...]:
    """Features: layer k here is what leaves it, which layer k + 1 reads; -1 is the embedding."""
    if ids is None:
        assert target_layers is not None
        first, last = 1, target_layers - 3
        ids = [target_layers // 2]
        if layers > 1:
            ids = [round(first + i * (last - first) / (layers - 1)) for i in range(layers)]
    if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
        raise InvalidInput(f"target_layer_ids is {ids!r:.60} in {where}; give a list of layers.")
    if target_layers is not None and not all(-1 <= one < target_layers for one in ids):
        raise InvalidInput(
            f"target_layer_ids is {ids!r:.60} in {where}; of {target_layers} layers it names -1 to "
            f"{target_layers - 1}."
        )
    return tuple(one + 1 for one in ids)


def _causal(
    described: Mapping[str, Any],
    inner: Mapping[str, Any],
    types: list[str] | None,
    layers: int,
    where: str,
) -> tuple[bool, ...]:
    """Returns `is_causal`, else `causal` or JetSpec's `causal_head`, for all layers; else windowed ones.

    Where `causal` says otherwise, `is_causal` is followed, as in vLLM. No program reads it and `causal_head`.
    """
    told = {
        key: switch(table, key, where=where)
        for table, key in ((described, "is_causal"), (inner, "causal"), (inner, "causal_head"))
        if table.get(key) is not None
    }
    if "causal_head" in told and len(set(told.values())) > 1:
        named = " and ".join(f"{key} {value}" for key, value in told.items())
        raise InvalidInput(
            f"Whether a slot sees later ones is told in two ways by {where} ({named}); copy its description "
            "again."
        )
    if told:
        return (next(iter(told.values())),) * layers
    return tuple(kind == SLIDING for kind in types or [FULL] * layers)


def _windows(
    described: Mapping[str, Any],
    inner: Mapping[str, Any],
    types: list[str] | None,
    layers: int,
    where: str,
) -> tuple[int | None, ...]:
    slides = [kind == SLIDING for kind in types or [FULL] * layers]
    if switch(inner, "use_swa", where=f"dflash_config of {where}") and not any(slides):
        slides = [True] * layers
    if not any(slides):
        if types is None and described.get("use_sliding_window") and described.get("sliding_window"):
            raise InvalidInput(
                f"use_sliding_window is on in {where}, and layer_types does not name the layers that have a "
                "window; write it in."
            )
        return (None,) * layers
    width = inner.get("swa_window_size") or described.get("sliding_window")
    if type(width) is not int or width < 1:
        raise InvalidInput(f"The window is {width!r:.60} in {where}; give sliding_window as an integer.")
    return tuple(width if one else None for one in slides)
