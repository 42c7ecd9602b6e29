"""Block drafters in the formats that people have: every tensor read, none left over, and written."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any, Literal

import torch
from torch import Tensor

from draftwood import InvalidInput
from draftwood.strategies.blocks import speculators, zlab
from draftwood.strategies.blocks.config import BlockConfig
from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.blocks.keys import TABLES, with_block_size
from draftwood.strategies.heads.files import (
    check_finite,
    check_no_model,
    read_description,
    read_tensors,
    write_head,
)
from draftwood.strategies.heads.formats import NOT_OURS
from draftwood.strategies.heads.sizes import check_held
from draftwood.strategies.heads.vocabulary import maps_of, target_ids_of

Format = Literal["zlab", "speculators"]

_KINDS = ("dflash", "domino", "dspark", "flowspec", "jetspec")


def is_block(folder: str | PathLike[str]) -> bool:
    """Whether the description in `folder` is that of a block drafter, readable or not."""
    try:
        description = read_description(folder)
    except InvalidInput:
        return False
    if "speculators_model_type" in description:
        # Others with a block are refused by their name when they are read.
        kind = description["speculators_model_type"]
        return kind in speculators.KINDS or (
            kind not in ("eagle3", "peagle", "mtp") and "block_size" in description
        )
    classes = description.get("architectures") or []
    named = isinstance(classes, list) and any(
        kind in str(name).lower() for name in classes for kind in _KINDS
    )
    return named or any(name in description for name in TABLES)


def load_block(folder: str | PathLike[str], *, block_size: int | None = None) -> BlockHead:
    """The block drafter in `folder`, in the dtype in which it is stored.

    Args:
        folder: with its files.
        block_size: slots of a block, where its description, as TorchSpec's, does not say it.

    Raises:
        InvalidInput: files that are missing, corrupt or pickles; a key of the description that is not known
            or not served; a tensor that is missing, left over or of another shape; a map that names tokens
            which there are not; all by name.
    """
    where = repr(str(folder))
    check_no_model(folder)
    description, stored = read_description(folder), _with_usual_names(read_tensors(folder))
    description = with_block_size(description, block_size, where)
    format_ = speculators if "speculators_model_type" in description else zlab
    config: BlockConfig = format_.described(description, stored, where)
    check_held(config.sizes, stored, vocabulary=config.vocab_size, where=where)
    ids = target_ids_of(
        stored.pop("d2t", None),
        stored.pop("t2d", None),
        proposed=config.proposed,
        vocabulary=config.vocab_size,
        where=where,
    )
    with torch.device("meta"):
        head = BlockHead(config, target_ids=ids)
    _check(stored, head.state_dict(), where)
    head.load_state_dict(stored, assign=True)
    return head.eval()


# What ModelOpt and TorchSpec call some parts, and what it is called here.
_RENAMED = {
    "markov_w1.": "markov_head.markov_w1.",
    "markov_w2.": "markov_head.markov_w2.",
    "gate_proj.": "markov_head.gate_proj.",
    "joint_proj.": "markov_head.joint_proj.",
    "confidence_proj.": "confidence_head.proj.",
    "context_proj.": "fc.",
    "context_norm.": "hidden_norm.",
    "final_norm.": "norm.",
}


def _with_usual_names(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns tensors by the names that most makers use, without those that no drafter computes with."""
    found: dict[str, Tensor] = {}
    for name, tensor in stored.items():
        if not name.endswith(NOT_OURS):
            theirs = next((begin for begin in _RENAMED if name.startswith(begin)), "")
            found[_RENAMED.get(theirs, "") + name.removeprefix(theirs)] = tensor
    confidence = found.get("confidence_head.proj.weight")
    if confidence is not None:  # some makers' has no bias
        found.setdefault("confidence_head.proj.bias", confidence.new_zeros(1))
    return found


def save_block(
    head: BlockHead, folder: str | PathLike[str], *, target: str = "", format: Format = "zlab"
) -> None:
    """Write `config.json` and `model.safetensors`, of which `load_block` makes the same head.

    Args:
        head: the drafter.
        folder: made where it is missing.
        target: the name of the model that it was made for; z-lab's format does not hold it.
        format: `"zlab"`, which DeepSpec and SpecForge write too, or `"speculators"`.

    Raises:
        InvalidInput: an unknown format, or a drafter that it cannot hold.
    """
    if head.config.feature_width != head.config.hidden_size:
        raise InvalidInput(
            f"The block drafter reads features of width {head.config.feature_width} and has the width "
            f"{head.config.hidden_size}, which no format holds; write the one that it was widened from."
        )
    description: dict[str, Any]
    if format == "zlab":
        description = zlab.description_of(head.config)
    elif format == "speculators":
        description = speculators.description_of(head.config, target=target)
    else:
        raise InvalidInput(f"format is {format!r:.40}; give zlab or speculators.")
    tensors = dict(head.state_dict())
    if not head.all_tokens:
        tensors |= maps_of(head.target_ids, head.config.vocab_size)
    write_head(folder, description, tensors)


def _check(stored: Mapping[str, Tensor], needed: Mapping[str, Tensor], where: str) -> None:
    for names, what in ((needed.keys() - stored, "lacks"), (stored.keys() - needed, "also holds")):
        if names:
            raise InvalidInput(
                f"{where} {what} {', '.join(sorted(names)[:4])}{' and more' if len(names) > 4 else ''}; its "
                "description says otherwise, so copy both again."
            )
    for name, weight in needed.items():
        if stored[name].shape != weight.shape:
            raise InvalidInput(
                f"{name} in {where} has the shape {list(stored[name].shape)} and should have "
                f"{list(weight.shape)}; copy the files again."
            )
        if not stored[name].is_floating_point():
            raise InvalidInput(f"{name} in {where} is {stored[name].dtype}; give floating-point weights.")
        check_finite(name, stored[name], where)
