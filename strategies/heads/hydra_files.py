"""Published Hydra heads: the files of zankner/Hydra."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from re import compile as pattern
from typing import Any

import torch
from torch import Tensor

from draftwood import InvalidInput, UnsupportedModel
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.decoder_layer import described_layer
from draftwood.strategies.heads.files import read_description, read_heads
from draftwood.strategies.heads.formats import load_weights
from draftwood.strategies.heads.hydra import HydraConfig, HydraHead
from draftwood.strategies.heads.keys import Table, whole_number
from draftwood.strategies.heads.sizes import check_guesses, check_layers

SAFE, PICKLE = "hydra_lm_head.safetensors", "hydra_lm_head.pt"
_COUNT, _BLOCKS, _KIND, _OFFSET = (
    "hydra_num_heads", "hydra_num_layers", "hydra_head_arch", "hidden_state_offset",
)  # fmt: skip
_KEYS = Table(
    read={_COUNT, _BLOCKS, _KIND, _OFFSET},
    only={"grounded_heads": (True,)},
    kind="Hydra heads",
)
_WITH_PREFIX = {"mlp": False, "prefix-mlp": True}
# The makers' misspelling.
_PREFIX = "prefix_embeding_layer."
_COPIES = (f"{_PREFIX}embed_tokens.", "input_embed_fn.", "rotary_emb.inv_freq")
"""Parts of names of copies of the target's words, which are not read, and of buffers."""
_MLP = pattern(r"hydra_mlp\.(\d+)\.(\d+)\.(.+)")
_AFTER_DROPOUT = pattern(r"hydra_lm_head\.\d+\.1\.(weight|bias)")
_OUTPUT = pattern(r"hydra_lm_head\.(\d+)\.(?:1\.)?(weight|bias)")


def is_hydra(folder: str | PathLike[str]) -> bool:
    """Returns whether the description in `folder` is that of Hydra heads, readable or not."""
    try:
        return _COUNT in read_description(folder)
    except InvalidInput:
        return False


def load_hydra(folder: str | PathLike[str], target: Mapping[str, Any]) -> HydraHead:
    """Returns the heads in `folder`, in the widest dtype of their tensors.

    Args:
        folder: with `config.json` and `hydra_lm_head.safetensors`.
        target: the description of its target's text model, which says the sizes of the heads' prefix layer.

    Raises:
        InvalidInput: files that are missing, corrupt or pickles; a key or tensor that is not known, missing
            or of another shape; fewer heads than the description names.
        UnsupportedModel: heads of another architecture.
    """
    folder = Path(folder)
    where = repr(str(folder))
    description = read_description(folder)
    stored = {
        name: tensor
        for name, tensor in read_heads(folder, SAFE).items()
        if not any(copy in name for copy in _COPIES)
    }
    config = _config(description, stored, target, where)
    with torch.device("meta"):
        head = HydraHead(config)
    theirs = {ours: name for name, ours in _names(stored).items()}
    # Some makers' blocks come after a layer of dropout, which has a number and no tensors.
    step = 2 if any(_AFTER_DROPOUT.fullmatch(name) for name in stored) else 1
    load_weights(
        head, stored, {theirs.get(ours, _usual(ours, step)): ours for ours in head.state_dict()}, where=where
    )
    return head


def _config(
    description: Mapping[str, Any], stored: Mapping[str, Tensor], target: Mapping[str, Any], where: str
) -> HydraConfig:
    kind = description.get(_KIND, "mlp")
    if kind not in _WITH_PREFIX:
        raise UnsupportedModel(
            f"{_KIND} is {kind!r:.40} in {where}; Hydra heads of the kinds {' and '.join(_WITH_PREFIX)} are "
            "read, so use others."
        )
    if description.get("grounded_heads") is None:
        raise InvalidInput(
            f"grounded_heads is missing in {where}, so that nothing says whether its heads read the drafted "
            "tokens; write true or false there."
        )
    _KEYS.check(description, where=where)
    count, blocks = (whole_number(description, key, where=where) for key in (_COUNT, _BLOCKS))
    check_guesses(_COUNT, count)
    check_layers(blocks, stored, where)
    offset = description.get(_OFFSET) or 0
    if offset:
        whole_number(description, _OFFSET, where=where)
    return HydraConfig(
        hidden_size=whole_number(target, "hidden_size", where="the target's config"),
        vocab_size=whole_number(target, "vocab_size", where="the target's config"),
        heads=count,
        blocks=blocks,
        output_bias=any(name.startswith("hydra_lm_head.") and name.endswith(".bias") for name in stored),
        offset=offset,
        prefix=_prefix(target, where) if _WITH_PREFIX[kind] else None,
    )


def _prefix(target: Mapping[str, Any], where: str) -> Eagle3Config:
    """Returns the layer before the heads, which is one of their target's."""
    if target.get("model_type") != "llama":
        raise UnsupportedModel(
            f"The heads in {where} read their target through one of its layers, and the target's model_type "
            f"is {target.get('model_type')!r:.40}; Hydra heads of Llama models are read."
        )
    layer = described_layer(target, where="the target's config")
    return Eagle3Config(
        **layer, target_hidden_size=layer["hidden_size"], draft_vocab_size=layer["vocab_size"]
    )


def _names(stored: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns our names of a file's tensors, by theirs; blocks follow each other with gaps or without."""
    blocks: dict[str, set[int]] = {}
    for name in stored:
        if found := _MLP.fullmatch(name):
            blocks.setdefault(found[1], set()).add(int(found[2]))
    names: dict[str, str] = {}
    for name in stored:
        if found := _MLP.fullmatch(name):
            place = sorted(blocks[found[1]]).index(int(found[2]))
            names[name] = f"heads.{found[1]}.{place}.{found[3]}"
        elif found := _OUTPUT.fullmatch(name):
            names[name] = f"outputs.{found[1]}.{found[2]}"
        elif name.startswith(_PREFIX):
            rest = name.removeprefix(_PREFIX)
            names[name] = rest if rest.startswith("norm.") else rest.replace("layers.0.", "prefix.", 1)
    return names


def _usual(ours: str, step: int) -> str:
    """Returns the name that the makers give a tensor which is missing; `step` is from block to block."""
    if ours.startswith("heads."):
        _, head, block, rest = ours.split(".", 3)
        return f"hydra_mlp.{head}.{int(block) * step + step - 1}.{rest}"
    for begin, name in (
        ("outputs.", "hydra_lm_head."),
        ("prefix.", f"{_PREFIX}layers.0."),
    ):
        if ours.startswith(begin):
            return name + ours.removeprefix(begin)
    return _PREFIX + ours
