"""A model's decoder layers, and second models over the same weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from draftwood.errors import InvalidInput, UnsupportedModel

NUMBERS = {"layer_idx", "layer_id"}
"""What modules call the place of their layer, which is its slot in the cache."""

PLACES = {"attn_layer_indices", "full_attn_idxs", "hybrid_layer_ids"}
"""What configurations call the places of layers of one kind."""


def count_layers(model: Any) -> int:
    """How many decoder layers `model` has that can be left out one by one; 0 where they are not found."""
    return len(decoder_layers(model))


def decoder_layers(model: Any) -> Sequence[torch.nn.Module]:
    """The decoder layers of `model`; none where they are not found."""
    return [] if (name := _place(model)) is None else list(model.get_submodule(name))


def body(model: Any) -> Any:
    """The module that runs the decoder layers, whose output the output head reads; None where none does."""
    owner = (_place(model) or "").rpartition(".")[0]
    return model.get_submodule(owner) if owner else None


def shared_copy(model: Any) -> Any:
    """A second model object whose parameters and buffers are the same tensors; only the structure is new."""
    tensors = [*model.parameters(), *model.buffers()]
    return copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})


def without(model: Any, layers: Sequence[int]) -> Any:
    """A second model object without `layers`, whose weights are those of `model` itself.

    Only the structure is copied: parameters and buffers are the same tensors. The layers that stay are
    numbered anew, as the cache and the configuration count them.

    Args:
        model: a transformers model; it is not changed.
        layers: places among its decoder layers, from 0; none is allowed.

    Raises:
        UnsupportedModel: the model's decoder layers are not found.
        InvalidInput: a layer that the model does not have, one named twice, or all of them.
    """
    name = _place(model)
    if name is None:
        raise UnsupportedModel(
            f"The decoder layers of {type(model).__name__} are not found, so that none can be left out; use "
            "a draft model."
        )
    have = len(model.get_submodule(name))
    for layer in layers:
        if not 0 <= layer < have:
            raise InvalidInput(f"There is no layer {layer} to leave out; the model's are 0 to {have - 1}.")
    kept = [layer for layer in range(have) if layer not in layers]
    if have - len(kept) != len(layers):
        raise InvalidInput(f"The layers to leave out, {list(layers)}, name one twice; name each once.")
    if not kept:
        raise InvalidInput(f"All {have} layers are to be left out; keep at least one.")
    smaller = shared_copy(model)
    found = smaller.get_submodule(name)
    parent, _, attribute = name.rpartition(".")
    setattr(smaller.get_submodule(parent), attribute, torch.nn.ModuleList([found[layer] for layer in kept]))
    for place, layer in enumerate(kept):
        for module in found[layer].modules():
            for number in NUMBERS & vars(module).keys():
                setattr(module, number, place)
    _describe(smaller.config.get_text_config(decoder=True), kept, have)
    return smaller


def _place(model: Any) -> str | None:
    """Dotted name of the list of decoder layers: the outermost of their number, if there is but one."""
    count = getattr(model.config.get_text_config(decoder=True), "num_hidden_layers", None)
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == count
    ]
    outermost = min((name.count(".") for name in names), default=0)
    names = [name for name in names if name.count(".") == outermost]
    return names[0] if len(names) == 1 else None


def _describe(text: Any, kept: Sequence[int], have: int) -> None:
    """Let the configuration tell of the kept layers alone."""
    text.num_hidden_layers = len(kept)
    for name, value in vars(text).items():
        # Places of some kind of layer.
        if name in PLACES and isinstance(value, list | tuple):
            vars(text)[name] = [place for place, layer in enumerate(kept) if layer in value]
            continue
        # One entry a layer: their kinds, which of them rotate, and the like.
        if "layer" in name and isinstance(value, list | tuple) and len(value) == have:
            vars(text)[name] = type(value)(value[layer] for layer in kept)
