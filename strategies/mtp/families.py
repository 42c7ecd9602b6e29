"""Families of models with MTP layers: their keys and tensors, and transformers' classes of their blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import attrs
import torch
from torch.nn import Module

from draftwood import InvalidInput, UnsupportedModel
from draftwood.strategies.heads.keys import has_no_effect, whole_number
from draftwood.strategies.heads.rope import ROPE_TYPES
from draftwood.strategies.mtp.attention import NAME

TRAINED_DEPTHS, TARGET = "mtp_trained_depths", "mtp_target"
"""Our keys: how many tokens in a row the layer was trained to draft (one where missing), and its model."""
_BLOCKS = "mtp_layers_block_type"
_PATTERN = "mtp_hybrid_override_pattern"
_OWN_WORDS = "mtp_use_dedicated_embeddings"
_KINDS = {
    "*": "full_attention",
    "E": "moe",
    "-": "mlp",
    "M": "linear_attention",
    "attention": "full_attention",
}
_SPEAKS_OF_MTP = re.compile("mtp|nextn")


@attrs.frozen(kw_only=True)
class Family:
    """One family.

    Attributes:
        title: its name.
        model_types: what `config.json` calls it.
        classes: transformers' module below `models`, and what its classes begin with.
        block: of the class of a decoder layer.
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
    """

    title: str
    model_types: tuple[str, ...]
    classes: tuple[str, str]
    block: str = "DecoderLayer"
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
_NEMOTRON = {
    "layers.0.enorm.": "embedding_norm.",
    "layers.0.hnorm.": "state_norm.",
    "layers.0.eh_proj.": "projection.",
}
NEMOTRON_H = Family(
    title="Nemotron-H",
    model_types=("nemotron_h",),
    classes=("nemotron_h", "NemotronH"),
    block="Block",
    rotary=None,
    known=(_BLOCKS, _PATTERN),
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
        known=(_OWN_WORDS,),
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
        known=(_OWN_WORDS,),
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
    NEMOTRON_H,
)


@attrs.frozen(kw_only=True, eq=False)
class Layout:
    """One MTP layer, as its config describes it.

    Attributes:
        family: of its model.
        description: its `config.json`, only of the text model.
        config: transformers', for its blocks.
        kinds: of its blocks in Nemotron-H; of others one.
        prefix: of its tensors' names in a file.
        names: as `Family.names`.
        trained_depths: how many tokens in a row it was trained to draft.
    """

    family: Family
    description: Mapping[str, Any]
    config: Any
    kinds: tuple[str, ...]
    prefix: str
    names: Mapping[str, str]
    trained_depths: int = 1

    @property
    def width(self) -> int:
        return int(self.config.hidden_size)

    @property
    def vocab_size(self) -> int:
        return int(self.config.vocab_size)

    @property
    def sizes(self) -> dict[str, int]:
        """Its width, and that of a rotation, by their keys."""
        known = {key: getattr(self.config, key, None) for key in ("hidden_size", "head_dim")}
        return {key: size for key, size in known.items() if isinstance(size, int)}

    @property
    def attention_at(self) -> int:
        """The block that attends."""
        return self.kinds.index("full_attention")

    def blocks(self) -> list[Module]:
        make = self._class(self.family.block)
        return [make(self.config, place) for place in range(len(self.kinds))]

    def norm(self) -> Module:
        made: Module = self._class("RMSNorm")(self.width, eps=getattr(self.config, self.family.epsilon))
        return made

    def rotary(self) -> Module:
        """The rotation of a family that has one."""
        assert self.family.rotary is not None
        with torch.device("cpu"):
            made: Module = self._class(self.family.rotary)(self.config)
        return made

    def _class(self, name: str) -> Any:
        module, prefix = self.family.classes
        return getattr(import_module(f"transformers.models.{module}.modeling_{module}"), prefix + name)


_SPARSE = "have an indexer that chooses the keys they see"
OTHERS: Mapping[str, str] = {
    "deepseek_v32": _SPARSE,
    "glm_moe_dsa": _SPARSE,
    "deepseek_v4": "have sparse attention over compressed keys",
    "longcat_flash": "read states of layers that are two in one, of which no features are given",
    "mimo_v2_flash": "are several and attend in a window with sinks",
}
"""Models with MTP layers that compute something else, by `model_type`, and what they do."""


def family_of(description: Mapping[str, Any]) -> Family | None:
    """The family that a `config.json` names; None for one without MTP layers that are known here."""
    kind = description.get("model_type")
    return next((family for family in FAMILIES if kind in family.model_types), None)


def layout_of(description: Mapping[str, Any], *, where: str) -> Layout:
    """Returns the layout that `config.json` gives for a model's MTP layer.

    Raises:
        UnsupportedModel: a family that is not known, several MTP layers, or a layer that attends otherwise.
        InvalidInput: a key that speaks of MTP layers and is not known, or a wrong value.
    """
    family = family_of(description)
    if family is None and (reason := OTHERS.get(str(description.get("model_type")))):
        raise UnsupportedModel(
            f"{where} is of a model whose MTP layers {reason}, which is not supported; use another drafter."
        )
    if family is None:
        known = ", ".join(family.title for family in FAMILIES)
        raise UnsupportedModel(
            f"model_type is {description.get('model_type')!r:.60} in {where}; MTP layers of {known} are read."
        )
    text: dict[str, Any] = {**description, **(description.get("text_config") or {})}
    text.pop("text_config", None)
    _check_keys(text, family, where)
    config = _config(text, family, where)
    layers = int(config.num_hidden_layers)
    kinds = _kinds(text, where) if family is NEMOTRON_H else ("full_attention",)
    names = dict(family.names)
    if family is NEMOTRON_H:
        config.layers_block_type = list(kinds)
        names[f"layers.{len(kinds) - 1}.final_layernorm."] = "norm."
        names |= {f"layers.{place}.": f"blocks.{place}." for place in range(len(kinds))}
    for key, value in family.fixed.items():
        if hasattr(config, key):
            setattr(config, key, value)
    config._attn_implementation = NAME
    # transformers' products over all experts at once have no double precision.
    config._experts_implementation = "eager"
    _check_rotation(config, where)
    return Layout(
        family=family,
        description=text,
        config=config,
        kinds=kinds,
        prefix=family.prefix.format(layers=layers),
        names=names,
        trained_depths=whole_number(text, TRAINED_DEPTHS, where=where, default=1),
    )


def _check_keys(text: Mapping[str, Any], family: Family, where: str) -> None:
    known = {*family.counts, *family.known, TRAINED_DEPTHS, TARGET}
    for key in text:
        if _SPEAKS_OF_MTP.search(key) and key not in known and not has_no_effect(key):
            raise InvalidInput(
                f"{where} has the key {key!r:.60}, which is not known here and may change what its MTP layer "
                "computes; use another drafter."
            )
    for key in family.counts:
        count = text.get(key)
        if count is None:
            continue
        if count == 0:
            raise without_layer(where, f"{key} is 0")
        if count != 1:
            raise UnsupportedModel(
                f"{key} is {count!r:.20} in {where}; models with one MTP layer are read, which drafts on "
                "from its own state."
            )
    if text.get(_OWN_WORDS) not in (None, False, True):
        raise InvalidInput(f"{_OWN_WORDS} is {text[_OWN_WORDS]!r:.60} in {where}; give true or false.")


def without_layer(where: str, reason: str) -> InvalidInput:
    """For a checkpoint that holds no MTP layer."""
    return InvalidInput(
        f"The checkpoint in {where} holds no MTP layer ({reason}); train one with `draftwood train mtp`, or "
        "use another drafter."
    )


def _config(text: Mapping[str, Any], family: Family, where: str) -> Any:
    module, prefix = family.classes
    made = getattr(
        import_module(f"transformers.models.{module}.configuration_{module}"), prefix + family.config
    )
    ours = ("model_type", TRAINED_DEPTHS, TARGET)
    own = {key: _with_floats(value) for key, value in text.items() if key not in ours}
    try:
        return made.from_dict(own)
    except Exception as error:  # configs fail in many ways
        reason = " ".join(str(error).split())[:160].rstrip(".")
        raise InvalidInput(f"{where} describes no {family.title} model ({reason}); copy it again.") from error


def _with_floats(value: Any) -> Any:
    """With the floats that JSON has not, such as infinity, which transformers writes as objects."""
    if isinstance(value, list):
        return [_with_floats(one) for one in value]
    return float(value["__float__"]) if isinstance(value, dict) and set(value) == {"__float__"} else value


def _kinds(text: Mapping[str, Any], where: str) -> tuple[str, ...]:
    """Returns the kinds of the blocks of Nemotron-H's MTP layer."""
    told = text.get(_BLOCKS) or text.get(_PATTERN) or "*E"
    kinds = tuple(_KINDS.get(kind, kind) for kind in told)
    served = {"full_attention", "moe", "mlp"}
    if kinds.count("full_attention") != 1 or not set(kinds) <= served:
        raise UnsupportedModel(
            f"The MTP layer in {where} is made of {', '.join(map(str, kinds))[:120]}; layers with one block "
            "of attention and blocks of experts or MLPs are read."
        )
    return kinds


def _check_rotation(config: Any, where: str) -> None:
    kind = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if kind not in ROPE_TYPES:
        raise UnsupportedModel(
            f"The rotation in {where} is {kind!r:.40}, which changes as a text grows; MTP layers with "
            f"{', '.join(ROPE_TYPES)} are read."
        )
    windows = getattr(config, "layer_types", None) or ()
    if getattr(config, "sliding_window", None) is not None and "sliding_attention" in windows:
        raise UnsupportedModel(
            f"The MTP layer in {where} attends in a window of {config.sliding_window}; layers that see all "
            "of the text are read."
        )
