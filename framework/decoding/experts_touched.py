"""Experts that the tokens of a pass touch, in mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "top_k_experts")


def experts_touched(
    model: Any, sizes: Sequence[int], *, tokens: Sequence[int] = ()
) -> tuple[tuple[int, float], ...]:
    """Returns the mean number of a layer's experts that passes over so many tokens touch.

    Counted over `tokens`, where the modules that hold the experts are told which of them each token goes to.
    Elsewhere it is the expectation if every token chose its k of E experts evenly: E (1 - (1 - k / E)^n).

    Args:
        model: a model of transformers.
        sizes: tokens of a pass.
        tokens: of a text, of which each pass takes the last ones.

    Returns:
        Pairs of a size and the experts; none for a model without experts.
    """
    counted = _routed(model, tokens) if len(tokens) >= max(sizes) else []
    if counted:
        return tuple((size, _mean([layer[-size:].unique().numel() for layer in counted])) for size in sizes)
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    experts, chosen = _number(text, _EXPERTS), _number(text, _CHOSEN)
    if experts < 2 or not chosen:
        return ()
    return tuple((size, experts * (1 - (1 - chosen / experts) ** size)) for size in sizes)


def _number(config: Any, names: Sequence[str]) -> int:
    parts = (config, getattr(config, "ffn_config", None))  # DBRX tells it there
    found = (getattr(part, name, None) for part in parts for name in names)
    return next((value for value in found if isinstance(value, int)), 0)


def _routed(model: Any, tokens: Sequence[int]) -> list[Tensor]:
    """Returns the experts `[tokens, chosen]` of every layer that has some; none if no module is told them.

    Many routers add a bias to their scores, or choose groups first, so that the largest logits do not tell.
    """
    modules = model.modules() if isinstance(model, nn.Module) else ()
    holders = [one for one in modules if type(one).__name__.endswith("Experts")]
    if not holders:
        return []
    chosen: list[Tensor] = []

    def note(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        chosen.extend(one for one in (*args, *named.values()) if _names_experts(one, len(tokens)))

    hooks = [one.register_forward_pre_hook(note, with_kwargs=True) for one in holders]
    try:
        with torch.no_grad():
            model(input_ids=torch.tensor([list(tokens)], device=model.device))
    finally:
        for hook in hooks:
            hook.remove()
    return chosen


def _names_experts(value: Any, tokens: int) -> bool:
    return (
        isinstance(value, Tensor)
        and value.dtype in (torch.int32, torch.int64)
        and value.dim() > 1
        and value.shape[0] == tokens
    )


def _mean(values: Sequence[int]) -> float:
    return sum(values) / len(values)
