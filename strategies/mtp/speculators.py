"""MTP layers as speculators saves them: a nested description, and other names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from draftwood import InvalidInput, UnsupportedModel
from draftwood.strategies.heads.keys import Table, whole_number
from draftwood.strategies.heads.speculators import layer_table
from draftwood.strategies.mtp.families import TRAINED_DEPTHS
from draftwood.strategies.mtp.layout import Layout, layout_of

KIND = "mtp"
_COUNT = "num_nextn_predict_layers"
_KEYS = Table(
    read={
        _COUNT, "speculators_config", "speculators_model_type", "tie_word_embeddings",
        "transformer_layer_config",
    },
    kind="speculators' MTP layers",
)  # fmt: skip
_PREFIX = "mtp_layers.0."
_NAMES = {
    "token_layernorm.": "embedding_norm.",
    "hidden_layernorm.": "state_norm.",
    "input_proj.": "projection.",
    "final_layernorm.": "norm.",
    "": "blocks.0.",
}


def is_speculator(description: Mapping[str, Any]) -> bool:
    """Returns whether a description is that of an MTP layer of speculators."""
    return description.get("speculators_model_type") == KIND


def native_layout(description: Mapping[str, Any], *, where: str) -> Layout:
    """Returns the layout that the layer has in a checkpoint of its family.

    Raises:
        UnsupportedModel: as `layout_of`, such as several layers.
        InvalidInput: a key or value that is not supported.
    """
    _KEYS.check(description, where=where)
    if (count := whole_number(description, _COUNT, where=where, default=1)) != 1:
        raise UnsupportedModel(
            f"{_COUNT} is {count} in {where}; one MTP layer is read, which drafts on from its own state."
        )
    text = {**layer_table(description, where), TRAINED_DEPTHS: _depths(description, where)}
    return layout_of(text, where=where)


def layout_in_file(native: Layout) -> Layout:
    """Returns the layout with the names that speculators' files have."""
    if native.family.state_first or native.family.before_norm or len(native.kinds) > 1:
        raise InvalidInput(
            f"speculators saves no MTP layers of {native.family.title}; read that model's own."
        )
    return attrs.evolve(native, prefix=_PREFIX, names=_NAMES)


def _depths(description: Mapping[str, Any], where: str) -> int:
    """Returns how many tokens in a row the layer was trained to draft, which its makers also propose."""
    about = description.get("speculators_config")
    methods = about.get("proposal_methods") if isinstance(about, dict) else None
    first = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
    return whole_number(first, "speculative_tokens", where=where, default=1)
