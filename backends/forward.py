"""A model's own forward: what it takes, and the logits of a text without cache or mask."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor


def input_device(model: Any) -> torch.device:
    """Where token ids go: the embedding's device, also where its weights are offloaded."""
    embedding = model.get_input_embeddings()
    placed = getattr(getattr(embedding, "_hf_hook", None), "execution_device", None)
    if placed is not None:
        return torch.device(placed)
    weight: Tensor | None = next(embedding.parameters(), None)
    if weight is None or weight.device.type == "meta":
        return torch.device(model.device)
    return weight.device


def plain_logits(model: Any, tokens: list[int]) -> Tensor:
    """Logits `[len(tokens), vocab]` of one forward pass without cache or mask."""
    ids = torch.tensor([tokens], device=input_device(model))
    options: dict[str, Any] = {"input_ids": ids, "use_cache": False}
    if takes(model, "position_ids"):
        # Some count from elsewhere by themselves, but not where generate() counts for them.
        options["position_ids"] = torch.arange(len(tokens), device=ids.device).unsqueeze(0)
    with torch.no_grad():
        logits: Tensor = model(**options).logits[0]
    return logits


def takes(model: Any, argument: str) -> bool:
    """Whether the model's forward has an argument of this name."""
    # What torch.compile() returns takes anything.
    inner = getattr(model, "_orig_mod", model)
    return argument in inspect.signature(inner.forward).parameters
