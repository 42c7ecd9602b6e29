"""Descriptions that makers copy from the target, whose keys their classes of heads leave unread."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from draftwood.strategies.heads.keys import named_classes

LIKE_LLAMA = (
    "Eagle3LlamaForCausalLM",
    "LlamaForCausalLMEagle3",
    "PEagleDraftModel",
    "Qwen3Eagle3Model",
)
"""Classes of heads whose layers are Llama's, whatever `model_type` says."""
_DRAFT_MODEL = "Eagle3DraftModel"
_OF_TARGET = ("layer_types", "sliding_window", "use_sliding_window")


def guesses_at_once(description: Mapping[str, Any]) -> bool:
    """Returns whether a flat description is that of a P-EAGLE head: SpecForge's, or NeMo AutoModel's."""
    named = any("peagle" in name.lower() for name in named_classes(description))
    return named or (description.get("parallel_drafting") is True and "draft_vocab_size" in description)


def has_plain_layers(description: Mapping[str, Any]) -> bool:
    """Returns whether a class that `description` names says by itself what its layers are."""
    return any(name in LIKE_LLAMA for name in named_classes(description)) or is_draft_model(description)


def is_draft_model(description: Mapping[str, Any]) -> bool:
    """Returns whether a head is one of NeMo AutoModel's, whose description is the target's and a few keys."""
    return any(name.endswith(_DRAFT_MODEL) for name in named_classes(description))


def without_target(description: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a description without the windows, and the number of layers, that are the target's own.

    The layers of NeMo AutoModel's heads see all of the text; there is one, but in P-EAGLE heads.
    """
    if not is_draft_model(description):
        return dict(description)
    left = {*_OF_TARGET, *(() if description.get("parallel_drafting") else ("num_hidden_layers",))}
    return {key: value for key, value in description.items() if key not in left}


def keys_of_target(description: Mapping[str, Any]) -> frozenset[str]:
    """Returns the keys that targets of this `model_type` have; none where a class has not plain layers."""
    if not has_plain_layers(description):
        return frozenset()
    return _keys_of(str(description.get("model_type")))


@cache
def _keys_of(model_type: str) -> frozenset[str]:
    from transformers import CONFIG_MAPPING

    return frozenset(CONFIG_MAPPING[model_type]().to_dict()) if model_type in CONFIG_MAPPING else frozenset()
