"""Keys of a block drafter's description: read, without effect, or refused by name."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from draftwood import InvalidInput
from draftwood.strategies.blocks.config import MARKOV, Markov
from draftwood.strategies.heads.config import ROPE_TYPES

# What decides nothing of what a trained head computes here.
WITHOUT_EFFECT = frozenset(
    {
        "_name_or_path", "architectures", "attention_dropout", "auto_map", "bos_token_id",
        "confidence_head_alpha", "dtype", "embed_requires_grad", "eos_token_id", "initializer_range",
        "max_window_layers", "model_type", "num_anchors", "pad_token_id", "torch_dtype",
        "transformers_version", "use_cache",
    }
)  # fmt: skip
# What is read for these values alone.
ONLY: Mapping[str, tuple[Any, ...]] = {
    "attention_bias": (False, None),
    "attention_mode": ("gqa", None),
    "hidden_act": ("silu", None),
    "projector_type": ("dspark", "dflash", None),
    "tie_word_embeddings": (False, True, None),
}
MARKOV_KEYS = frozenset(
    {"confidence_head_with_markov", "enable_confidence_head", "markov_head_type", "markov_rank"}
)


def check_keys(described: Mapping[str, Any], known: Collection[str], where: str) -> None:
    """Refuse what is not known, and values that are not served.

    Raises:
        InvalidInput: it, by name.
    """
    for key, value in described.items():
        if key in ONLY:
            if value not in ONLY[key]:
                raise InvalidInput(
                    f"{key} is {value!r:.60} in {where}; blocks are read where it is {ONLY[key][0]!r} alone."
                )
        elif key not in known and key not in WITHOUT_EFFECT:
            raise InvalidInput(
                f"{where} has the key {key!r:.60}, which is not known here and may change what is computed; "
                "if it does not, take it out."
            )


def size(described: Mapping[str, Any], key: str, where: str, default: int | None = None) -> int:
    """The value of `key`, 1 or more; without `default` it must be there."""
    value = described.get(key)
    value = default if value is None else value
    if type(value) is not int or not 1 <= value < 2**31:
        raise InvalidInput(f"{key} is {value!r:.60} in {where}; it is an integer of 1 or more, of 31 bits.")
    return value


def flag(described: Mapping[str, Any], key: str, where: str, default: bool = False) -> bool:
    """Whether `key` is on."""
    value = described.get(key)
    if value is not None and not isinstance(value, bool):
        raise InvalidInput(f"{key} is {value!r:.60} in {where}; give true or false.")
    return default if value is None else value


def mask_token(described: Mapping[str, Any], vocab_size: int, where: str) -> int:
    """The token of the slots behind the root."""
    token = described.get("mask_token_id")
    if type(token) is not int or not 0 <= token < vocab_size:
        raise InvalidInput(f"mask_token_id is {token!r:.60} in {where}; it is a token below {vocab_size}.")
    return token


def rope(described: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The rotation, in the old keys or in `rope_parameters`."""
    told = dict(described.get("rope_parameters") or described.get("rope_scaling") or {})
    told["rope_type"] = told.get("rope_type") or told.pop("type", None) or "default"
    told["rope_theta"] = float(told.get("rope_theta") or described.get("rope_theta") or 10000.0)
    if told["rope_type"] not in ROPE_TYPES:
        raise InvalidInput(
            f"rope_type is {told['rope_type']!r:.40} in {where}; {', '.join(ROPE_TYPES)} are served."
        )
    return told


def markov(
    described: Mapping[str, Any], width: int, where: str, *, rank: int, confidence: bool, beside: bool
) -> dict[str, Any]:
    """The correction and the confidence head, as keywords of a `BlockConfig`.

    Args:
        described: the table that holds their keys.
        width: of the drafter.
        where: they stand, for messages.
        rank: of the correction where its key is missing.
        confidence: whether there is a confidence head, where its key is missing.
        beside: whether it reads the correction too, where its key is missing.
    """
    told = described.get("markov_rank")
    told = rank if told is None else told
    if type(told) is not int or not 0 <= told < 2**31:
        raise InvalidInput(f"markov_rank is {told!r:.60} in {where}; it is an integer of 0 or more.")
    kind: Markov = described.get("markov_head_type") or "vanilla"
    if kind not in MARKOV:
        raise InvalidInput(f"markov_head_type is {kind!r:.60} in {where}; {', '.join(MARKOV)} are served.")
    there = flag(described, "enable_confidence_head", where, confidence)
    with_markov = flag(described, "confidence_head_with_markov", where, beside)
    return {
        "markov_rank": told,
        "markov_type": kind,
        "confidence": (width + told * with_markov) * there,
    }


def markov_described(width: int, rank: int, kind: Markov, confidence: int) -> dict[str, Any]:
    """The keys of which `markov` makes these again."""
    return {
        "markov_rank": rank,
        "markov_head_type": kind,
        "enable_confidence_head": bool(confidence),
        "confidence_head_with_markov": confidence > width,
    }
