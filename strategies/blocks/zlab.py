"""The files of z-lab, of DeepSpec and of SpecForge: a Qwen3-like description, with keys of its own."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from draftwood import InvalidInput
from draftwood.strategies.blocks import keys
from draftwood.strategies.blocks.config import FULL, SLIDING, BlockConfig
from draftwood.strategies.heads.sizes import check_layers

_READ = keys.MARKOV_KEYS | {
    "block_size", "dflash_config", "draft_vocab_size", "head_dim", "hidden_size", "intermediate_size",
    "is_causal", "layer_types", "mask_token_id", "max_position_embeddings", "num_attention_heads",
    "num_hidden_layers", "num_key_value_heads", "num_target_layers", "rms_norm_eps", "rope_parameters",
    "rope_scaling", "rope_theta", "sliding_window", "target_layer_ids", "use_sliding_window", "vocab_size",
}  # fmt: skip
_READ_INSIDE = keys.MARKOV_KEYS | {
    "causal", "causal_head", "mask_token_id", "swa_window_size", "target_layer_ids", "use_swa",
}  # fmt: skip
_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "num_hidden_layers", "num_target_layers", "block_size",
)  # fmt: skip


def described(description: Mapping[str, Any], tensors: Collection[str], where: str) -> BlockConfig:
    """Returns the configuration that the `config.json` of a DFlash, JetSpec or DSpark drafter describes.

    Raises:
        InvalidInput: a key that is not known or missing, or a value that is not served, by name.
    """
    inner = description.get("dflash_config") or {}
    if not isinstance(inner, dict):
        raise InvalidInput(f"dflash_config is {inner!r:.60} in {where}; it is a table of keys.")
    keys.check_keys(description, _READ, where)
    keys.check_keys(inner, _READ_INSIDE, f"dflash_config of {where}")
    sizes = {name: keys.size(description, name, where) for name in _SIZES}
    layers, target_layers = sizes["num_hidden_layers"], sizes["num_target_layers"]
    check_layers(layers, tensors, where)
    heads, width = sizes["num_attention_heads"], sizes["hidden_size"]
    both = {**description, **inner}
    corrected = keys.markov(both, width, where, rank=0, confidence=False, beside=False)
    named = description.get("architectures") or []
    spark = both.get("projector_type") == "dspark" or "dspark" in str(named).lower()
    proposed = keys.size(description, "draft_vocab_size", where, default=sizes["vocab_size"])
    if proposed != sizes["vocab_size"]:
        raise InvalidInput(
            f"draft_vocab_size is {proposed} in {where}, less than its vocabulary of {sizes['vocab_size']}; "
            "that is read in speculators' files alone."
        )
    return BlockConfig(
        vocab_size=sizes["vocab_size"],
        hidden_size=width,
        intermediate_size=sizes["intermediate_size"],
        attention_heads=heads,
        key_value_heads=sizes["num_key_value_heads"],
        head_dim=keys.size(description, "head_dim", where, default=max(width // heads, 1)),
        norm_eps=float(description.get("rms_norm_eps", 1e-6)),
        max_positions=keys.size(description, "max_position_embeddings", where, default=32768),
        target_layers=target_layers,
        taps=_taps(both.get("target_layer_ids"), layers, target_layers, where),
        block_size=sizes["block_size"],
        mask_token_id=keys.mask_token(both, sizes["vocab_size"], where),
        causal=_causal(description, inner, layers),
        windows=_windows(description, inner, layers, where),
        rope=keys.rope(description, where),
        # DSpark draws the first token from the root's slot, and DFlash from the first mask's.
        root_guesses=spark or corrected["markov_rank"] > 0,
        own_embedding="embed_tokens.weight" in tensors,
        own_head="lm_head.weight" in tensors,
        **corrected,
    )


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
    if config.markov_rank or config.confidence:
        described |= keys.markov_described(
            config.hidden_size, config.markov_rank, config.markov_type, config.confidence
        )
    return described


def _taps(ids: Any, layers: int, target_layers: int, where: str) -> tuple[int, ...]:
    """Features: layer k here is what leaves it, which layer k + 1 reads; -1 is the embedding."""
    if ids is None:
        first, last = 1, target_layers - 3
        ids = [target_layers // 2]
        if layers > 1:
            ids = [round(first + i * (last - first) / (layers - 1)) for i in range(layers)]
    if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
        raise InvalidInput(f"target_layer_ids is {ids!r:.60} in {where}; it is a list of layers.")
    if not all(-1 <= one < target_layers - 1 for one in ids):
        raise InvalidInput(
            f"target_layer_ids is {ids!r:.60} in {where}; of {target_layers} layers it names -1 to "
            f"{target_layers - 2}, since what leaves the last one is not kept."
        )
    return tuple(one + 1 for one in ids)


def _causal(described: Mapping[str, Any], inner: Mapping[str, Any], layers: int) -> tuple[bool, ...]:
    """`is_causal`, else `causal` or JetSpec's `causal_head` for all layers, else those of a window alone."""
    for table, key in ((described, "is_causal"), (inner, "causal"), (inner, "causal_head")):
        if table.get(key) is not None:
            return (bool(table[key]),) * layers
    types = described.get("layer_types") or [FULL] * layers
    return tuple(kind == SLIDING for kind in types)


def _windows(
    described: Mapping[str, Any], inner: Mapping[str, Any], layers: int, where: str
) -> tuple[int | None, ...]:
    types = described.get("layer_types")
    if types is not None and (
        not isinstance(types, list) or len(types) != layers or not set(types) <= {SLIDING, FULL}
    ):
        raise InvalidInput(
            f"layer_types is {types!r:.80} in {where}; it names {FULL} or {SLIDING} for each of {layers} "
            "layers."
        )
    slides = [kind == SLIDING for kind in types or [FULL] * layers]
    if inner.get("use_swa") and not any(slides):
        slides = [True] * layers
    if not any(slides):
        return (None,) * layers
    width = inner.get("swa_window_size") or described.get("sliding_window")
    if type(width) is not int or width < 1:
        raise InvalidInput(f"The window is {width!r:.60} in {where}; give sliding_window as an integer.")
    return tuple(width if one else None for one in slides)
