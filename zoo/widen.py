"""Embed a small model in a larger shape that computes the same function.

A real speed measurement needs a target that costs what a real target costs, while acceptance
statistics need a target that a draft can predict. A widened small model is both.

The added channels of the residual stream stay zero: the embedding, and every block's output
projection, write zeros there. Added heads, added intermediate units and added layers compute on
random weights (so that no kernel can shortcut them) and write nothing. The RMS norm divides by the
mean over all H' channels, of which only H are non-zero, so its weight is scaled by sqrt(H / H') and
its epsilon by H / H'. Where H' / H is a power of 4 that factor is exact in every dtype. What a
family of models has besides is in `families.py`.
"""

from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.zoo.families import FAMILIES, Family

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

__all__ = ["parameter_count", "widen", "widen_to"]


def widen(
    model: PreTrainedModel,
    *,
    hidden_size: int,
    intermediate_size: int | None = None,
    num_hidden_layers: int,
    num_attention_heads: int | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """A larger model in eval mode whose logits equal `model`'s, up to rounding.

    Args:
        model: a Llama, Mamba-2 or Bamba of transformers, on any device; it is not changed.
        hidden_size: width of the residual stream, at least that of `model`; Mamba-2 mixers grow with it.
        intermediate_size: width of the MLP, at least that of `model`; grows with the other by default.
        num_hidden_layers: number of layers, at least that of `model`.
        num_attention_heads: query heads; by default they grow with the width. The size of a head
            and the number of query heads that share a key-value head stay as they are.
        dtype: of the new weights; that of `model` by default.
        seed: of the random weights that write nothing.

    Raises:
        UnsupportedModel: the model's family is not known here.
        InvalidInput: a size is smaller than the model's, does not divide into heads, or is one that the
            model does not have.
    """
    family = _family(model)
    requested = {
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_hidden_layers,
        "num_attention_heads": num_attention_heads,
    }
    known = {*family.widths, "num_hidden_layers", *(["num_attention_heads"] if family.heads else [])}
    for name, size in requested.items():
        if size is None:
            continue
        if name not in known:
            raise InvalidInput(f"a model of type {model.config.model_type!r} has no {name}; leave it out")
        smallest = getattr(model.config, name)
        if size < smallest:
            raise InvalidInput(f"{name}={size} is smaller than the model's; give {smallest} or more")
    sizes = {name: size for name, size in requested.items() if size is not None}
    wide: PreTrainedModel = _empty(model, sizes, dtype=dtype or model.dtype, device=model.device)
    _fill(model, wide, family, seed)
    return wide


def widen_to(
    model: PreTrainedModel,
    *,
    parameters: float = 350e6,
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """`widen` to at least `parameters` parameters, in not too many layers: 32, and 64 of Mamba-2.

    All widths are multiplied by the smallest whole number that makes this possible. The zoo's targets
    reach 350 million parameters at four times their width (where widening is exact in every dtype), in
    28 layers (llama-7m), 30 (bamba-6m) and 54 (mamba2-5m).
    """
    family, scale = _family(model), 0
    while True:
        scale += 1
        widths = {name: getattr(model.config, name) * scale for name in family.widths}
        if (layers := _depth(model, widths, parameters)) is not None:
            return widen(model, **widths, num_hidden_layers=layers, dtype=dtype, seed=seed)


def parameter_count(model: torch.nn.Module) -> int:
    """Number of parameters; tied ones count once."""
    return sum(weight.numel() for weight in model.parameters())


def _family(model: PreTrainedModel) -> Family:
    name = model.config.model_type
    if name not in FAMILIES:
        raise UnsupportedModel(
            f"a model of type {name!r} cannot be widened yet; "
            f"give a model of type {' or '.join(map(repr, FAMILIES))}"
        )
    return FAMILIES[name]


def _empty(model: PreTrainedModel, sizes: Mapping[str, int], *, dtype: Any, device: Any) -> Any:
    """A model of the wide shape with uninitialised weights; `device` may be `"meta"`."""
    import torch

    family, config = _family(model), copy.deepcopy(model.config)
    old, new = config.hidden_size, sizes["hidden_size"]
    for name in family.widths:
        setattr(config, name, sizes.get(name, getattr(config, name) * new // old))
    config.num_hidden_layers = sizes["num_hidden_layers"]
    setattr(config, family.epsilon, getattr(config, family.epsilon) * old / new)
    family.divide(model, config, sizes.get("num_attention_heads"))
    with torch.device("meta"):
        wide = type(model)._from_config(config, dtype=dtype)
    wide.to_empty(device=device)
    wide.tie_weights()
    wide.generation_config = copy.deepcopy(model.generation_config)
    return wide


def _fill(model: PreTrainedModel, wide: PreTrainedModel, family: Family, seed: int) -> None:
    import torch

    generator = torch.Generator(device=wide.device).manual_seed(seed)
    old = dict(model.named_parameters())
    factor = math.sqrt(model.config.hidden_size / wide.config.hidden_size)
    with torch.no_grad():
        for name, weight in wide.named_parameters():
            source = old.get(name)
            if "norm" in name:
                weight.fill_(1.0)
            elif any(part in name for part in family.writes):
                # What these write reaches the residual stream, so all they have added is zero.
                weight.zero_()
            else:
                weight.normal_(0.0, 0.02, generator=generator)
            if source is not None:
                weight[: family.silent(name, wide.config)] = 0
                special = family.places(name, model.config, wide.config)
                places = [special.get(axis, torch.arange(size)) for axis, size in enumerate(source.shape)]
                weight[torch.meshgrid(places, indexing="ij")] = (
                    source * factor if "norm" in name else source
                ).to(weight.dtype)
        # The rotary frequencies depend only on the size of a head, which is kept.
        buffers = dict(model.named_buffers())
        for name, buffer in wide.named_buffers():
            buffer.copy_(buffers[name])
    wide.train(False)


def _depth(model: PreTrainedModel, widths: Mapping[str, int], parameters: float) -> int | None:
    """The fewest layers with which a model of these widths has `parameters`; None if that is too many."""
    fewest: int = model.config.num_hidden_layers
    deepest = max(fewest, _family(model).deepest)
    sizes = {**widths, "num_hidden_layers": deepest}
    whole = _empty(model, sizes, dtype=model.dtype, device="meta")
    excess = parameter_count(whole) - parameters
    if excess < 0:
        return None
    of_layer: Counter[int] = Counter()
    for name, weight in whole.named_parameters():
        if match := re.search(r"\.layers\.(\d+)\.", name):
            of_layer[int(match[1])] += weight.numel()
    layers = deepest
    while layers > fewest and excess >= of_layer[layers - 1]:
        layers -= 1
        excess -= of_layer[layers]
    return layers
