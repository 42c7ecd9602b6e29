"""Experts that the tokens of a pass touch, in mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts")


def experts_touched(
    model: Any, sizes: Sequence[int], *, tokens: Sequence[int] = ()
) -> tuple[tuple[int, float], ...]:
    """Returns the mean number of a layer's experts that passes over so many tokens touch.

    Counted by the model's routers over `tokens`, where its forward gives `router_logits`. Elsewhere it is the
    expectation if every token chose its k of E experts evenly: E (1 - (1 - k / E)^n).

    Args:
        model: a model of transformers.
        sizes: tokens of a pass.
        tokens: of a text, of which each pass takes the last ones.

    Returns:
        Pairs of a size and the experts; none for a model without experts.
    """
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    experts, chosen = _number(text, _EXPERTS), _number(text, _CHOSEN)
    if experts < 2 or not chosen:
        return ()
    routed = _routed(model, tokens, chosen) if len(tokens) >= max(sizes) else []
    if routed:
        return tuple((size, _mean([layer[-size:].unique().numel() for layer in routed])) for size in sizes)
    return tuple((size, experts * (1 - (1 - chosen / experts) ** size)) for size in sizes)


def _number(config: Any, names: Sequence[str]) -> int:
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if isinstance(value, int)), 0)


def _routed(model: Any, tokens: Sequence[int], chosen: int) -> list[torch.Tensor]:
    """Returns the experts `[tokens, chosen]` of every layer that has a router; none if it does not tell."""
    ids = torch.tensor([list(tokens)], device=model.device)
    try:
        with torch.no_grad():
            logits = getattr(model(input_ids=ids, output_router_logits=True), "router_logits", None)
    except (TypeError, ValueError):  # a forward that has no such argument
        return []
    layers = [one for one in logits or () if torch.is_tensor(one) and one.shape[-1] >= chosen]
    return [layer.reshape(-1, layer.shape[-1]).topk(chosen).indices for layer in layers]


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
