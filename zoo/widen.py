"""Embed a small model in a larger shape that computes the same function.

A real speed measurement needs a target that costs what a real target costs, while acceptance
statistics need a target that a draft can predict. A widened small model is both.

The added channels of the residual stream stay zero: the embedding, and every block's output
projection, write zeros there. Added heads, added intermediate units and added layers compute on
random weights (so that no kernel can shortcut them) and write nothing. The RMS norm divides by the
mean over all H' channels, of which only H are non-zero, so its weight is scaled by sqrt(H / H') and
its epsilon by H / H'. Where H' / H is a power of 4 that factor is exact in every dtype.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from draftwood.errors import InvalidInput, UnsupportedModel

if TYPE_CHECKING:
    import torch
    from torch import Generator, Tensor
    from transformers import PreTrainedModel

__all__ = ["parameter_count", "widen", "widen_to"]

_DEEPEST = 32


def widen(
    model: PreTrainedModel,
    *,
    hidden_size: int,
    intermediate_size: int,
    num_hidden_layers: int,
    num_attention_heads: int | None = None,
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """A larger model in eval mode whose logits are those of `model`, up to rounding.

    Args:
        model: a Llama of transformers, on any device; it is not changed.
        hidden_size: width of the residual stream, at least that of `model`.
        intermediate_size: width of the MLP, at least that of `model`.
        num_hidden_layers: number of layers, at least that of `model`.
        num_attention_heads: query heads; by default they grow with the width. The size of a head
            and the number of query heads that share a key-value head stay as they are.
        dtype: of the new weights; that of `model` by default.
        seed: of the random weights that write nothing.

    Raises:
        UnsupportedModel: the model's family has no adapter.
        InvalidInput: a size is smaller than the model's, or does not divide into heads.
    """
    adapter = _adapter(model)
    sizes = {
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_hidden_layers,
    }
    if num_attention_heads is not None:
        sizes["num_attention_heads"] = num_attention_heads
    for name, size in sizes.items():
        smallest = getattr(model.config, name)
        if size < smallest:
            raise InvalidInput(f"{name}={size} is smaller than the model's; give {smallest} or more")
    return adapter(model, sizes, dtype or model.dtype, seed)


def widen_to(
    model: PreTrainedModel,
    *,
    parameters: float = 350e6,
    dtype: torch.dtype | None = None,
    seed: int = 0,
) -> PreTrainedModel:
    """`widen` to at least `parameters` parameters, in at most 32 layers where the model has fewer.

    All widths are multiplied by the smallest whole number that makes this possible. llama-7m
    reaches 350 million parameters at four times its width (where widening is exact in every dtype)
    and 28 layers.
    """
    _adapter(model)
    config = model.config
    scale = 0
    while True:
        scale += 1
        sizes = {
            "hidden_size": config.hidden_size * scale,
            "intermediate_size": config.intermediate_size * scale,
            "num_hidden_layers": config.num_hidden_layers,
        }
        have = _count(model, **sizes)
        layer = _count(model, **{**sizes, "num_hidden_layers": config.num_hidden_layers + 1}) - have
        missing = max(0, math.ceil((parameters - have) / layer))
        if missing == 0 or config.num_hidden_layers + missing <= _DEEPEST:
            sizes["num_hidden_layers"] += missing
            return widen(model, **sizes, dtype=dtype, seed=seed)


def parameter_count(model: PreTrainedModel) -> int:
    """Number of parameters; tied ones count once."""
    return sum(weight.numel() for weight in model.parameters())


def _adapter(model: PreTrainedModel) -> Callable[..., PreTrainedModel]:
    family = model.config.model_type
    if family not in _ADAPTERS:
        raise UnsupportedModel(
            f"a model of type {family!r} cannot be widened yet; "
            f"give a model of type {' or '.join(map(repr, sorted(_ADAPTERS)))}"
        )
    return _ADAPTERS[family]


def _widen_llama(
    model: PreTrainedModel, sizes: dict[str, int], dtype: torch.dtype, seed: int
) -> PreTrainedModel:
    import torch

    wide: PreTrainedModel = _empty_llama(model, sizes, dtype=dtype, device=model.device)
    generator = torch.Generator(device=model.device).manual_seed(seed)
    old = dict(model.named_parameters())
    factor = math.sqrt(model.config.hidden_size / wide.config.hidden_size)
    with torch.no_grad():
        for name, weight in wide.named_parameters():
            source = old.get(name)
            if "norm" in name:
                weight.fill_(1.0)
                if source is not None:
                    weight[: len(source)] = source * factor
            else:
                # What these write reaches the residual stream, so all they have added is zero.
                writes = any(part in name for part in ("embed_tokens", "o_proj", "down_proj"))
                _fill(weight, source, zero=writes, generator=generator)
        # The rotary frequencies depend on the size of a head alone, which is kept.
        buffers = dict(model.named_buffers())
        for name, buffer in wide.named_buffers():
            buffer.copy_(buffers[name])
    wide.train(False)
    return wide


def _fill(weight: Tensor, source: Tensor | None, *, zero: bool, generator: Generator) -> None:
    """Fill `weight` with zeros or small normal noise, and its leading corner with `source`."""
    if zero:
        weight.zero_()
    else:
        weight.normal_(0.0, 0.02, generator=generator)
    if source is not None:
        weight[tuple(slice(size) for size in source.shape)] = source


def _empty_llama(model: PreTrainedModel, sizes: dict[str, int], *, dtype: Any, device: Any) -> Any:
    """A Llama of the wide shape with uninitialised weights; `device` may be `"meta"`."""
    import torch
    from transformers import LlamaForCausalLM

    config = copy.deepcopy(model.config)
    group = config.num_attention_heads // config.num_key_value_heads
    heads = sizes.get("num_attention_heads")
    if heads is None:
        kv_heads = config.num_key_value_heads * sizes["hidden_size"] // config.hidden_size
        heads = group * kv_heads
    if heads % group:
        raise InvalidInput(
            f"num_attention_heads={heads} is not a multiple of {group}, the number of query heads "
            "that share a key-value head; give a multiple"
        )
    config.head_dim = model.model.layers[0].self_attn.head_dim
    config.num_attention_heads = heads
    config.num_key_value_heads = heads // group
    config.rms_norm_eps *= config.hidden_size / sizes["hidden_size"]
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers"):
        setattr(config, name, sizes[name])
    with torch.device("meta"):
        wide = LlamaForCausalLM._from_config(config, dtype=dtype)
    wide.to_empty(device=device)
    wide.tie_weights()
    wide.generation_config = copy.deepcopy(model.generation_config)
    return wide


def _count(model: PreTrainedModel, **sizes: int) -> int:
    return parameter_count(_empty_llama(model, sizes, dtype=model.dtype, device="meta"))


_ADAPTERS: dict[str, Callable[..., PreTrainedModel]] = {"llama": _widen_llama}
