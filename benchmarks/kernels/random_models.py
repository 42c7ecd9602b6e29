"""Models of the shapes that people run, with random weights: what a pass costs does not depend on them."""

from __future__ import annotations

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

SHAPES: dict[str, dict[str, Any]] = {
    "random-7b": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "random-68m": {
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 2,
        "num_attention_heads": 12,
    },
    "random-1m": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
}
"""Llamas by name: of 7 billion parameters, of JackFram's draft of 68 million, and one to rehearse with."""


def random_model(name: str, device: str, dtype: str) -> Any:
    """A Llama of a shape of `SHAPES`, its weights made where it runs."""
    config = LlamaConfig(vocab_size=32_000, max_position_embeddings=4096, **SHAPES[name])
    default = torch.get_default_dtype()
    torch.manual_seed(0)
    torch.set_default_dtype(getattr(torch, dtype))
    try:
        with torch.device(device):
            model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(default)
    return model.eval()
