"""Published Medusa heads: the files of FasterDecoding and of vLLM, read as stacks of all heads' weights."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from re import compile as pattern
from typing import Any

import torch
from torch import Tensor

from draftwood import InvalidInput
from draftwood.strategies.heads.files import (
    check_floats,
    read_description,
    read_heads,
)
from draftwood.strategies.heads.keys import Table, whole_number

SAFE, PICKLE = "medusa_lm_head.safetensors", "medusa_lm_head.pt"
_COUNT, _LAYERS = "medusa_num_heads", "medusa_num_layers"
_KEYS = Table(
    read={
        _COUNT, _LAYERS, "hidden_size", "max_paths", "max_seq_len", "num_heads", "num_hidden_layers", "topk",
        "truncated_vocab_size", "vocab_size",
    },
    kind="Medusa heads",
)  # fmt: skip
# Head, layer and part of residual blocks, and the head of output heads, by FasterDecoding and by vLLM.
_BLOCK = pattern(r"(\d+)\.(\d+)\.linear\.(weight|bias)|blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_OUTPUT = pattern(r"(\d+)\.(\d+)\.weight|lm_heads\.(\d+)\.weight")


def is_medusa(folder: str | PathLike[str]) -> bool:
    """Returns whether the description in `folder` is that of published Medusa heads, readable or not."""
    try:
        description = read_description(folder)
    except InvalidInput:
        return False
    named = _COUNT in description or description.get("model_type") == "medusa"
    return named or (Path(folder) / SAFE).is_file()


def read_medusa(folder: str | PathLike[str]) -> dict[str, Tensor]:
    """Returns the weights of all heads in `folder`, in the widest dtype of them.

    A head without a residual block has zeros there, which leave a state as it is.

    Returns:
        `weight` `[heads, hidden, hidden]`, `bias` `[heads, 1, hidden]`, `output` `[heads, vocab, hidden]`.

    Raises:
        InvalidInput: files that are missing, corrupt or pickles; a key or tensor that is not known; several
            residual blocks per head; fewer heads than the description names; tensors of different shapes.
    """
    folder = Path(folder)
    where = repr(str(folder))
    description = read_description(folder)
    _KEYS.check(description, where=where)
    layers = _layers(description, where)
    stored = {_short(name): tensor for name, tensor in read_heads(folder, SAFE).items()}
    blocks: dict[str, dict[int, Tensor]] = {"weight": {}, "bias": {}}
    outputs: dict[int, Tensor] = {}
    for name, tensor in stored.items():
        if block := _BLOCK.fullmatch(name):
            head, layer, part = (some for some in block.groups() if some is not None)
            known = int(layer) < layers
            blocks[part][int(head)] = tensor
        elif output := _OUTPUT.fullmatch(name):
            head, *place = (some for some in output.groups() if some is not None)
            known = not place or int(place[0]) == layers
            outputs[int(head)] = tensor
        else:
            known = False
        if not known:
            raise InvalidInput(
                f"{where} holds {name[:80]}, which Medusa heads of {layers} residual block(s) do not have; "
                "copy the heads again."
            )
    check_floats(stored, where)
    return _stacked(outputs, blocks, layers, _told(description, where), where)


def _layers(description: Mapping[str, Any], where: str) -> int:
    key = _LAYERS if _LAYERS in description else "num_hidden_layers"
    layers = description.get(key, 1)
    if layers != 0 and whole_number(description, key, where=where, default=1) > 1:
        raise InvalidInput(
            f"{key} is {layers} in {where}; Medusa heads with one residual block or none are read, so use "
            "others."
        )
    return int(layers)


def _told(description: Mapping[str, Any], where: str) -> int:
    """Returns how many heads the description names; some files hold more."""
    whole, short = description.get("vocab_size"), description.get("truncated_vocab_size")
    if short is not None and short != whole:
        raise InvalidInput(
            f"truncated_vocab_size is {short!r:.40} in {where}; Medusa heads over all tokens of their target "
            "are read, so use others."
        )
    return whole_number(description, _COUNT if _COUNT in description else "num_heads", where=where, default=1)


def _short(name: str) -> str:
    """Returns a tensor's name without the name of the module that holds all heads."""
    for holder in ("medusa_head.", "medusa_heads.", "heads."):
        name = name.removeprefix(holder)
    return name


def _stacked(
    outputs: Mapping[int, Tensor],
    blocks: Mapping[str, Mapping[int, Tensor]],
    layers: int,
    told: int,
    where: str,
) -> dict[str, Tensor]:
    count = len(outputs)
    numbers = list(range(count))
    whole: dict[str, Mapping[int, Tensor]] = {"output weight": outputs}
    if layers:
        whole |= {f"residual block's {part}": some for part, some in blocks.items()}
    last = max([told - 1, *(head for some in whole.values() for head in some)])
    for part, some in whole.items():
        lacking = next((head for head in range(last + 1) if head not in some), None)
        if lacking is not None:
            raise InvalidInput(
                f"{where} lacks the {part} of head {lacking}, and has parts of {last + 1} head(s) or a "
                f"description that names {told}; copy the heads again."
            )
    width = outputs[0].shape[-1]
    made = {"output": [outputs[head] for head in numbers]}
    if layers:
        made |= {part: [blocks[part][head] for head in numbers] for part in ("weight", "bias")}
    shapes = {"output": (len(outputs[0]), width), "weight": (width, width), "bias": (width,)}
    for part, tensors in made.items():
        words = "output weight" if part == "output" else f"residual block's {part}"
        for head, one in enumerate(tensors):
            if tuple(one.shape) != shapes[part]:
                raise InvalidInput(
                    f"The {words} of Medusa head {head} in {where} has the shape {tuple(one.shape)}, and the "
                    f"others fit {shapes[part]}; copy the heads again."
                )
    every = [one for tensors in made.values() for one in tensors]
    common = max((one.dtype for one in every), key=lambda dtype: torch.finfo(dtype).bits)
    found = {part: torch.stack(tensors).to(common) for part, tensors in made.items()}
    return {
        "weight": found.get("weight", torch.zeros(count, width, width, dtype=common)),
        "bias": found.get("bias", torch.zeros(count, width, dtype=common)).unsqueeze(1),
        "output": found["output"],
    }
