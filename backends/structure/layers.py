"""A model's decoder layers, and second models over the same weights."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from draftwood.backends.weights.streamed import weights_maps
from draftwood.base.errors import InvalidInput, UnsupportedModel

LAYER_INDEX = {"layer_idx", "layer_id"}
"""What modules call the number of their layer, by which it finds its part of the cache."""

LAYER_LISTS = {"attn_layer_indices", "full_attn_idxs", "hybrid_layer_ids"}
"""What configurations call the numbers of the layers of one kind."""


def count_layers(model: Any) -> int:
    """Returns how many decoder layers `model` has; 0 if they are not found."""
    return len(decoder_layers(model))


def count_skippable(model: Any) -> int:
    """Returns how many decoder layers of `model` can be left out one by one; 0 if they are not found."""
    return 0 if _are_doubled(model.config.get_text_config(decoder=True)) else count_layers(model)


def decoder_layers(model: Any) -> Sequence[torch.nn.Module]:
    """The decoder layers of `model`; none where they are not found."""
    return [] if (name := layer_list(model)) is None else list(model.get_submodule(name))


def body(model: Any) -> Any:
    """The module that runs the decoder layers, whose output the output head reads; None where none does."""
    owner = (layer_list(model) or "").rpartition(".")[0]
    return model.get_submodule(owner) if owner else None


def shared_copy(model: Any) -> Any:
    """A second model object whose parameters and buffers are the same tensors; only the structure is new.

    What is streamed is read from the same place.
    """
    shared = [*model.parameters(), *model.buffers(), *weights_maps(model)]
    return copy.deepcopy(model, {id(one): one for one in shared})


def without_layers(model: Any, layers: Sequence[int]) -> Any:
    """Returns a second model object without `layers`, which shares the weights of `model`.

    Only the structure is copied: parameters and buffers are the same tensors. The layers that stay are
    numbered anew, as the cache and the configuration count them.

    Args:
        model: a transformers model; it is not changed.
        layers: numbers of its decoder layers, from 0; none is allowed.

    Raises:
        UnsupportedModel: the model's decoder layers are not found.
        InvalidInput: a layer that the model does not have, one named twice, or all of them.
    """
    name = layer_list(model)
    if name is None:
        raise UnsupportedModel(
            f"The decoder layers of {type(model).__name__} are not found, so that none can be left out; use "
            "a draft model."
        )
    if not count_skippable(model):
        raise UnsupportedModel(
            f"A layer of {type(model).__name__} holds two, so none can be left out; use a draft model."
        )
    have = len(model.get_submodule(name))
    for layer in layers:
        if not 0 <= layer < have:
            raise InvalidInput(f"There is no layer {layer} to leave out; the model's are 0 to {have - 1}.")
    remaining = [layer for layer in range(have) if layer not in layers]
    if have - len(remaining) != len(layers):
        raise InvalidInput(f"The layers to leave out, {list(layers)}, name one twice; name each once.")
    if not remaining:
        raise InvalidInput(f"All {have} layers are to be left out; keep at least one.")
    smaller = shared_copy(model)
    modules = smaller.get_submodule(name)
    parent, _, attribute = name.rpartition(".")
    setattr(
        smaller.get_submodule(parent), attribute, torch.nn.ModuleList([modules[layer] for layer in remaining])
    )
    for index, layer in enumerate(remaining):
        for module in modules[layer].modules():
            for attribute in LAYER_INDEX & vars(module).keys():
                setattr(module, attribute, index)
    _describe_layers(smaller.config.get_text_config(decoder=True), remaining, have)
    return smaller


def layer_list(model: Any) -> str | None:
    """Dotted name of the list of decoder layers: the outermost of their number, if there is but one."""
    if model.config.is_encoder_decoder:
        return _list_of_decoder(model)
    text = model.config.get_text_config(decoder=True)
    count = text.num_layers if _are_doubled(text) else getattr(text, "num_hidden_layers", None)
    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.ModuleList) and len(module) == count
    ]
    outermost = min((name.count(".") for name in names), default=0)
    names = [name for name in names if name.count(".") == outermost]
    return names[0] if len(names) == 1 else None


def _are_doubled(text: Any) -> bool:
    """Whether a layer holds two, which the cache and `num_hidden_layers` count, as LongCat-Flash's do."""
    layers = getattr(text, "num_layers", None)
    return isinstance(layers, int) and 2 * layers == getattr(text, "num_hidden_layers", None)


def _list_of_decoder(model: Any) -> str | None:
    """Dotted name of the only list in the decoder of an encoder-decoder, whose encoder has one too."""
    decoder = model.get_decoder()
    name = next((name for name, module in model.named_modules() if module is decoder), None)
    lists = [part for part, child in decoder.named_children() if isinstance(child, torch.nn.ModuleList)]
    return f"{name}.{lists[0]}" if name and len(lists) == 1 else None


def _describe_layers(text: Any, remaining: Sequence[int], have: int) -> None:
    """Let the configuration describe only the remaining layers."""
    text.num_hidden_layers = len(remaining)
    for name, value in vars(text).items():
        # Numbers of the layers of some kind.
        if name in LAYER_LISTS and isinstance(value, list | tuple):
            vars(text)[name] = [index for index, layer in enumerate(remaining) if layer in value]
            continue
        # One entry a layer: their kinds, which of them rotate, and the like.
        if "layer" in name and isinstance(value, list | tuple) and len(value) == have:
            vars(text)[name] = type(value)(value[layer] for layer in remaining)
