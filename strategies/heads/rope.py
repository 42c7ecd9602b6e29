"""Rotary positions of a head: frequencies by its config, and the rotation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from draftwood import InvalidInput
from draftwood.strategies.heads.config import Eagle3Config

THETA = 10000.0
"""The base of the rotation where a description names none."""


def frequencies(config: Eagle3Config) -> tuple[Tensor, float]:
    """Angles of one position, float32 `[head_dim / 2]`, and the scale of queries and keys."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    like = LlamaConfig(
        # Only the head's own width counts here; a Llama's is that of all heads together.
        hidden_size=config.attention_heads * config.head_dim,
        head_dim=config.head_dim,
        num_attention_heads=config.attention_heads,
        rope_parameters=dict(config.rope),
        max_position_embeddings=config.max_positions or 2048,
    )
    rotary = LlamaRotaryEmbedding(like)
    # A copy: a module that is given the buffer itself would make it one of its own.
    inverse: Tensor = rotary.inv_freq.detach().clone()
    return inverse.float(), float(rotary.attention_scaling)


def rotated(states: Tensor, positions: Tensor, inverse: Tensor, scale: float) -> Tensor:
    """Queries or keys `[rows, n, heads, head_dim]` at `positions` `[rows, n]`."""
    angles = (positions.unsqueeze(-1).to(torch.float32) * inverse).unsqueeze(2)
    cos, sin = ((turn * scale).to(states.dtype) for turn in (angles.cos(), angles.sin()))
    first, second = states.chunk(2, -1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


def rope_parameters(description: Mapping[str, Any], *, where: str) -> dict[str, Any]:
    """The rotation that a description names, in the old keys or in `rope_parameters`.

    Raises:
        InvalidInput: neither a mapping nor absent, or both ways at once.
    """
    new, old = description.get("rope_parameters"), description.get("rope_scaling")
    for key, value in (("rope_parameters", new), ("rope_scaling", old)):
        if value is not None and not isinstance(value, dict):
            raise InvalidInput(f"{key} is {value!r:.60} in {where}; a rotation is described by keys.")
    if new is not None and old is not None and new != old:
        raise InvalidInput(f"{where} has rope_parameters and rope_scaling, which differ; take one out.")
    told = dict(new or old or {})
    kind = told.pop("type", None)
    told["rope_type"] = told.get("rope_type") or kind or "default"
    told["rope_theta"] = float(told.get("rope_theta") or description.get("rope_theta") or THETA)
    return told
