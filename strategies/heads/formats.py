"""EAGLE-3 heads in the formats that people have: read without guessing, and written."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module

from draftwood import InvalidInput
from draftwood.strategies.heads import safeailab, speculators
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.copied import guesses_at_once
from draftwood.strategies.heads.eagle3 import Eagle3Head
from draftwood.strategies.heads.files import (
    check_floats,
    check_no_model,
    read_description,
    read_tensors,
    stored_names,
    write_head,
)
from draftwood.strategies.heads.found import on_hub
from draftwood.strategies.heads.keys import named_classes, switch
from draftwood.strategies.heads.sizes import check_held, check_taps
from draftwood.strategies.heads.vocabulary import maps_of, target_ids_of

Format = Literal["safeailab", "speculators"]
_FORMATS: dict[Format, ModuleType] = {"safeailab": safeailab, "speculators": speculators}


def is_head(folder: str | PathLike[str]) -> bool:
    """Returns whether the description in `folder` is that of an EAGLE-3 head, readable or not."""
    try:
        description = read_description(folder)
    except InvalidInput:
        return False
    if "speculators_model_type" in description:
        # Whatever no other reader takes, so that it is refused by its name.
        kind = description["speculators_model_type"]
        return kind == "eagle3" or (kind not in ("peagle", "mtp") and "block_size" not in description)
    classes = [name.lower() for name in named_classes(description)]
    if guesses_at_once(description) or _OF_BLOCKS & description.keys():
        return False
    # EAGLE-1 and EAGLE-2 are told apart when a head is read.
    named = (
        any(part in name for name in classes for part in ("eagle", *_LAST_LAYER))
        or description.get("model_type") == "eagle"
    )
    return named or "draft_vocab_size" in description or bool(_generation(folder, description))


def load_head(folder: str | PathLike[str], *, taps: tuple[int, ...] | None = None) -> Eagle3Head:
    """Returns the head in `folder`, in the dtype in which it is stored.

    Args:
        folder: in one of the formats.
        taps: layers of the target by their input, in place of those that the description names.

    Raises:
        InvalidInput: files that are missing, corrupt or pickles; a key of the description or a tensor that is
            not known or not there; a tensor of another shape than the description says; a map that names
            tokens which there are not.
    """
    where = f"{str(folder)!r}"
    description = read_description(folder)
    kind: Format = "speculators" if "speculators_model_type" in description else "safeailab"
    format_ = _FORMATS[kind]
    check_generation(folder)
    check_no_model(folder)
    stored = with_usual_names(read_tensors(folder), where=where)
    _tie(description, stored, where)
    config: Eagle3Config = format_.described(description, stored, where, taps=taps)
    check_taps(taps, stored, width=config.target_hidden_size, where=where)
    check_held(config.sizes, stored, vocabulary=config.vocab_size, where=where)
    target_ids = target_ids_of(
        stored.pop("d2t", None),
        stored.pop("t2d", None),
        proposed=config.draft_vocab_size,
        vocabulary=config.vocab_size,
        where=where,
    )
    with torch.device("meta"):
        head = Eagle3Head(config, target_ids=target_ids)
    first = safeailab.prefix_of(stored) if kind == "safeailab" else speculators.LAYER
    names = {in_file(name, first): name for name in head.state_dict()}
    load_weights(head, stored, names, where=where)
    return head


def check_generation(folder: str | PathLike[str]) -> None:
    """Refuse heads of EAGLE-1 and EAGLE-2, by their class or their tensors.

    Args:
        folder: of the description; weights that are not there are looked up on the hub.

    Raises:
        InvalidInput: such a head, or a description that cannot be read.
    """
    description = read_description(folder)
    names = [name.lower() for name in named_classes(description)]
    older = [
        name
        for name in names
        if any(part in name for part in ("eagle", *_LAST_LAYER)) and "eagle3" not in name
    ]
    if description.get("speculators_model_type") is None and (
        description.get("model_type") == "eagle"
        or (older and "draft_vocab_size" not in description)
        or _generation(folder, description) == 1
    ):
        kind = next((_LAST_LAYER[part] for part in _LAST_LAYER for name in older if part in name), _OLDER)
        raise InvalidInput(
            f"{str(folder)!r} describes a head of {kind}, which reads the target's last layer only; EAGLE-3 "
            "heads are read, so use one of those."
        )


_OLDER = "EAGLE-1 or EAGLE-2"
_LAST_LAYER = {"vispec": "ViSpec", "mlpspeculator": "MLPSpeculator"}
"""Other heads that read only the last layer, by a part of their classes' names."""
_OF_BLOCKS = {"block_size", "dflash_config", "dspark_config"}
_OF_EAGLE_3 = ("draft_vocab_size", "eagle_config", "speculators_model_type")
_BEFORE_EAGLE_3 = frozenset({"fc.weight", "layers.0.self_attn.q_proj.weight"})
_EAGLE_3 = frozenset({"fc.weight", "midlayer.self_attn.q_proj.weight"})


def _generation(folder: str | PathLike[str], description: Mapping[str, Any]) -> int | None:
    """Returns 1 for tensors named as in EAGLE-1 and EAGLE-2, 3 for EAGLE-3's, and else None.

    Published descriptions name a Llama with one layer, so no other files are looked into. A
    language model has no `fc`, and heads of later kinds norm what `fc` gives.
    """
    if description.get("num_hidden_layers") != 1 or any(key in description for key in _OF_EAGLE_3):
        return None
    try:
        stored = stored_names(folder)
    except InvalidInput:
        there = on_hub(folder)
        if there is None:
            return None
        if there.tensors is None:  # of pickles: a language model is published with its tokenizer
            return None if there.has_tokenizer else 1
        stored = there.tensors
    names = {name.removeprefix("model.") for name in stored}
    if names >= _EAGLE_3:
        return 3
    return 1 if names >= _BEFORE_EAGLE_3 and not any("hidden_norm" in name for name in names) else None


def _tie(description: Mapping[str, Any], stored: dict[str, Tensor], where: str) -> None:
    """Use the head's table of words as its output head where its description ties them.

    Makers' classes save both where they tie none, and their description may be a copy of the target's.
    """
    layer = description.get("transformer_layer_config")
    tables = (description, layer if isinstance(layer, dict) else {})
    told = any(switch(table, "tie_word_embeddings", where=where) for table in tables)
    table, output = stored.get("embed_tokens.weight"), stored.get("lm_head.weight")
    if told and table is not None and output is None:
        stored["lm_head.weight"] = table.clone()


# Angles that follow from the description, and copies of the target's that only training reads.
NOT_OURS = ("rotary_emb.inv_freq", "verifier_lm_head.weight", "verifier_norm.weight")


def with_usual_names(stored: Mapping[str, Tensor], *, where: str) -> dict[str, Tensor]:
    """Returns tensors by the names that most makers use, without those that no head computes with.

    Raises:
        InvalidInput: two tensors of one name.
    """
    nested = "model.fc.weight" in stored
    found: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        usual = name.removeprefix("model.") if nested else name
        usual = f"fc_norm.{usual.removeprefix('fc_norms.')}" if usual.startswith("fc_norms.") else usual
        if usual.endswith(NOT_OURS):
            continue
        if usual in found:
            raise InvalidInput(f"{where} holds {usual} under two names; copy the head again.")
        found[usual] = tensor
    return found


def save_head(
    head: Eagle3Head, folder: str | PathLike[str], *, target: str, format: Format = "safeailab"
) -> None:
    """Write `head` into `folder`, its weights in the dtype that they have.

    Args:
        head: the head.
        folder: made where it is missing.
        target: the name of the model that it was made for.
        format: `"safeailab"`, which SpecForge writes too, or `"speculators"`.

    Raises:
        InvalidInput: an unknown format, or a head that it cannot hold.
    """
    if format not in _FORMATS:
        raise InvalidInput(f"format is {format!r:.40}; give one of {', '.join(_FORMATS)}.")
    format_ = _FORMATS[format]
    description: dict[str, Any] = format_.description_of(head.config, target=target)
    # Files of several layers number all of them.
    first = format_.LAYER if head.config.layers == 1 else speculators.LAYER
    tensors = {in_file(name, first): tensor for name, tensor in head.state_dict().items()}
    if not head.all_tokens:
        tensors |= maps_of(head.target_ids, head.config.vocab_size)
    dtype = next(head.parameters()).dtype
    write_head(folder, {**description, "torch_dtype": str(dtype).removeprefix("torch.")}, tensors)


def load_weights(head: Module, stored: dict[str, Tensor], names: Mapping[str, str], *, where: str) -> None:
    """Give `head`, which lies on no device yet, its weights, all in the widest dtype of them.

    Args:
        head: the module.
        stored: tensors by the names of a file.
        names: names of the module's parameters, by the names of the file.
        where: place of the file, for messages.

    Raises:
        InvalidInput: tensors that are missing, left over, of another shape or no floats, by name.
    """
    _check_names(stored, names, where)
    _check_tensors(stored, {file: head.state_dict()[name] for file, name in names.items()}, where)
    common = max((tensor.dtype for tensor in stored.values()), key=lambda dtype: torch.finfo(dtype).bits)
    head.load_state_dict({names[file]: tensor.to(common) for file, tensor in stored.items()}, assign=True)
    head.eval()


def in_file(name: str, first: str) -> str:
    """Returns the name that files have for a parameter of an `Eagle3Head`.

    Args:
        name: of the parameter.
        first: the beginning of the names of the first layer's tensors.
    """
    if name.startswith("midlayer."):
        return first + name.removeprefix("midlayer.")
    if name.startswith("more."):
        _, number, rest = name.split(".", 2)
        return f"layers.{int(number) + 1}.{rest}"
    return name


def _check_names(stored: Mapping[str, Tensor], names: Mapping[str, str], where: str) -> None:
    if missing := sorted(names.keys() - stored.keys()):
        raise InvalidInput(
            f"The head in {where} lacks {_listed(missing)}, which its description asks for; copy it again, "
            "or mend the description."
        )
    if unused := sorted(stored.keys() - names.keys()):
        raise InvalidInput(
            f"The head in {where} has tensors that its description does not mention: {_listed(unused)}; a "
            "key may be missing there."
        )


def _check_tensors(stored: Mapping[str, Tensor], needed: Mapping[str, Tensor], where: str) -> None:
    for name, tensor in stored.items():
        if tensor.shape != needed[name].shape:
            raise InvalidInput(
                f"{name} in {where} has the shape {tuple(tensor.shape)}, and the description says "
                f"{tuple(needed[name].shape)}; one of them is another head's."
            )
    check_floats(stored, where)


def _listed(names: list[str]) -> str:
    shown = ", ".join(name[:80] for name in names[:6])
    return shown if len(names) <= 6 else f"{shown} and {len(names) - 6} more"
