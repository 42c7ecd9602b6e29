"""The layout of an MTP layer: its family, sizes and blocks, from the description of its model."""

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
from draftwood.strategies.mtp.families import (
    BLOCKS,
    FAMILIES,
    LAYER_TYPES,
    NEMOTRON_H,
    OTHERS,
    OWN_WORDS,
    PATTERN,
    TARGET,
    TRAINED_DEPTHS,
    Family,
    family_of,
)

_KINDS = {
    "*": "full_attention",
    "E": "moe",
    "-": "mlp",
    "M": "linear_attention",
    "attention": "full_attention",
}
_SPEAKS_OF_MTP = re.compile("mtp|nextn")


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
        block = self.family.block
        make = self._class(block) if isinstance(block, str) else block
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
    if (types := text.get(LAYER_TYPES)) not in (None, ["full_attention"]):
        raise UnsupportedModel(
            f"{LAYER_TYPES} is {types!r:.60} in {where}; layers that see all of the text are read."
        )
    if text.get(OWN_WORDS) not in (None, False, True):
        raise InvalidInput(f"{OWN_WORDS} is {text[OWN_WORDS]!r:.60} in {where}; give true or false.")


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
    told = text.get(BLOCKS) or text.get(PATTERN) or "*E"
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
