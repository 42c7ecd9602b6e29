"""Families of models with MTP layers: their keys and tensors, and transformers' classes of their blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs
from torch.nn import Module

TRAINED_DEPTHS, TARGET = "mtp_trained_depths", "mtp_target"
"""Our keys: how many tokens in a row the layer was trained to draft (one where missing), and its model."""
BLOCKS = "mtp_layers_block_type"
PATTERN = "mtp_hybrid_override_pattern"
LAYER_TYPES, WINDOWS = "mtp_layer_types", "mtp_sliding_windows"
OWN_WORDS = "mtp_use_dedicated_embeddings"


@attrs.frozen(kw_only=True)
class Family:
    """One family.

    Attributes:
        title: its name.
        model_types: what `config.json` calls it.
        classes: transformers' module below `models`, and what its classes begin with.
        block: of the class of a decoder layer, or what makes one of a config and its number.
        rotary: of the class of its rotation; None where it has none.
        counts: keys that say how many MTP layers there are.
        known: other keys that speak of MTP layers.
        fixed: what of its config differs in an MTP layer.
        prefix: of its tensors' names; `{layers}` stands for the target's number of layers.
        names: the beginnings of names after that, and ours; a longer one goes before a shorter one.
        epsilon: the key of its norms' epsilon.
        state_first: the state precedes the embedding where both are projected.
        before_norm: it reads and hands on states before the model's last norm, which is its own last norm
            too, and is read from the model's tensors.
        beginnings: of the names of its tensors after `prefix`, where others begin with that too.
        indexed: an indexer chooses which keys a pair sees.
    """

    title: str
    model_types: tuple[str, ...]
    classes: tuple[str, str]
    block: str | Callable[[Any, int], Module] = "DecoderLayer"
    rotary: str | None = "RotaryEmbedding"
    config: str = "Config"
    counts: tuple[str, ...] = ("num_nextn_predict_layers", "num_mtp_layers")
    known: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = attrs.field(factory=dict)
    prefix: str = "mtp."
    names: Mapping[str, str]
    epsilon: str = "rms_norm_eps"
    state_first: bool = False
    before_norm: bool = False
    beginnings: tuple[str, ...] = ("",)
    indexed: bool = False


_APPENDED = {
    "enorm.": "embedding_norm.",
    "hnorm.": "state_norm.",
    "eh_proj.": "projection.",
    "shared_head.norm.": "norm.",
    "shared_head.head.": "lm_head.",
    "embed_tokens.": "embed_tokens.",
    "": "blocks.0.",
}
_QWEN = {
    "pre_fc_norm_embedding.": "embedding_norm.",
    "pre_fc_norm_hidden.": "state_norm.",
    "fc.": "projection.",
    "norm.": "norm.",
    "embed_tokens.": "embed_tokens.",
    "layers.0.": "blocks.0.",
}
_MIMO = {
    "token_layernorm.": "embedding_norm.",
    "hidden_layernorm.": "state_norm.",
    "input_proj.": "projection.",
    "final_layernorm.": "norm.",
    "": "blocks.0.",
}
_ERNIE = {
    "mtp_emb_norm.0.": "embedding_norm.",
    "mtp_hidden_norm.0.": "state_norm.",
    "mtp_linear_proj.0.": "projection.",
    "mtp_block.0.": "blocks.0.",
    "norm.": "norm.",
}
_LONGCAT = {
    "layers.0.enorm.m.": "embedding_norm.",
    "layers.0.hnorm.m.": "state_norm.",
    "layers.0.eh_proj.": "projection.",
    "norm.": "norm.",
    "embed_tokens.": "embed_tokens.",
    "layers.0.transformer_layer.mlp.": "blocks.0.mlp.",
    "layers.0.": "blocks.0.",
}
_NEMOTRON = {
    "layers.0.enorm.": "embedding_norm.",
    "layers.0.hnorm.": "state_norm.",
    "layers.0.eh_proj.": "projection.",
}


def _longcat_block(config: Any, place: int) -> Module:
    from draftwood.strategies.mtp.longcat import DenseLayer

    return DenseLayer(config, place)


NEMOTRON_H = Family(
    title="Nemotron-H",
    model_types=("nemotron_h",),
    classes=("nemotron_h", "NemotronH"),
    block="Block",
    rotary=None,
    known=(BLOCKS, PATTERN),
    names=_NEMOTRON,
    epsilon="layer_norm_epsilon",
)
FAMILIES = (
    Family(
        title="DeepSeek-V3",
        model_types=("deepseek_v3",),
        classes=("deepseek_v3", "DeepseekV3"),
        fixed={"first_k_dense_replace": 0},
        prefix="model.layers.{layers}.",
        names=_APPENDED,
    ),
    Family(
        title="DeepSeek-V3.2",
        model_types=("deepseek_v32",),
        classes=("deepseek_v32", "DeepseekV32"),
        fixed={"mlp_layer_types": ["sparse"]},
        prefix="model.layers.{layers}.",
        names=_APPENDED,
        indexed=True,
    ),
    Family(
        title="GLM-5",
        model_types=("glm_moe_dsa",),
        classes=("glm_moe_dsa", "GlmMoeDsa"),
        # Engines may let drafted tokens see what the first one chose, which saves time only.
        known=("index_share_for_mtp_iteration",),
        fixed={"mlp_layer_types": ["sparse"], "indexer_types": ["full"]},
        prefix="model.layers.{layers}.",
        names=_APPENDED,
        indexed=True,
    ),
    Family(
        title="GLM-4.5",
        model_types=("glm4_moe",),
        classes=("glm4_moe", "Glm4Moe"),
        fixed={"first_k_dense_replace": 0},
        prefix="model.layers.{layers}.",
        names=_APPENDED,
    ),
    Family(
        title="GLM-4.7-Flash",
        model_types=("glm4_moe_lite",),
        classes=("glm4_moe_lite", "Glm4MoeLite"),
        fixed={"mlp_layer_types": ["sparse"]},
        prefix="model.layers.{layers}.",
        names=_APPENDED,
    ),
    Family(
        title="Ernie 4.5",
        model_types=("ernie4_5_moe",),
        classes=("ernie4_5_moe", "Ernie4_5_Moe"),
        fixed={"moe_layer_start_index": 1, "moe_layer_end_index": 0},  # its layer has no experts
        prefix="model.",
        names=_ERNIE,
        before_norm=True,
        beginnings=("mtp_", "norm."),
    ),
    Family(
        title="Qwen3-Next",
        model_types=("qwen3_next",),
        classes=("qwen3_next", "Qwen3Next"),
        fixed={"layer_types": ["full_attention"], "mlp_only_layers": [], "decoder_sparse_step": 1},
        names=_QWEN,
    ),
    Family(
        # Published without one; speculators trains one.
        title="Qwen3",
        model_types=("qwen3",),
        classes=("qwen3", "Qwen3"),
        fixed={"layer_types": ["full_attention"]},
        names=_QWEN,
    ),
    Family(
        title="Qwen3.5",
        model_types=("qwen3_5", "qwen3_5_text"),
        classes=("qwen3_5", "Qwen3_5"),
        rotary="TextRotaryEmbedding",
        config="TextConfig",
        counts=("mtp_num_hidden_layers",),
        known=(OWN_WORDS,),
        fixed={"layer_types": ["full_attention"]},
        names=_QWEN,
    ),
    Family(
        title="Qwen3.5 MoE",
        model_types=("qwen3_5_moe", "qwen3_5_moe_text"),
        classes=("qwen3_5_moe", "Qwen3_5Moe"),
        rotary="TextRotaryEmbedding",
        config="TextConfig",
        counts=("mtp_num_hidden_layers",),
        known=(OWN_WORDS,),
        fixed={"layer_types": ["full_attention"]},
        names=_QWEN,
    ),
    Family(
        title="MiMo",
        # Its own class is remote code; its layers are Qwen2's.
        model_types=("mimo",),
        classes=("qwen2", "Qwen2"),
        fixed={"layer_types": ["full_attention"]},
        prefix="model.mtp_layers.0.",
        names=_MIMO,
        state_first=True,
    ),
    Family(
        title="K-EXAONE",
        model_types=("exaone_moe",),
        classes=("exaone_moe", "ExaoneMoe"),
        # The last two are of training and of several layers.
        known=(LAYER_TYPES, WINDOWS, "mtp_loss_scaling_factor", "mtp_share_layers"),
        # Its layer has no experts. Without a window it has no rotation either, where the model has windows.
        fixed={"layer_types": ["full_attention"], "mlp_layer_types": ["dense"]},
        names=_QWEN,
    ),
    Family(
        title="LongCat-Flash",
        model_types=("longcat_flash",),
        classes=("longcat_flash", "LongcatFlash"),
        block=_longcat_block,
        prefix="model.mtp.",
        names=_LONGCAT,
    ),
    NEMOTRON_H,
)


OTHERS: Mapping[str, str] = {
    "exaone4_5": "attend in a window",
    "deepseek_v4": "have sparse attention over compressed keys",
    "mimo_v2_flash": "are several and attend in a window with sinks",
}
"""Models with MTP layers that compute something else, by `model_type`, and what they do."""


def family_of(description: Mapping[str, Any]) -> Family | None:
    """The family that a `config.json` names; None for one without MTP layers that are known here."""
    kind = description.get("model_type")
    return next((family for family in FAMILIES if kind in family.model_types), None)
