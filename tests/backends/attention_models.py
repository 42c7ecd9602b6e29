"""Tiny attention models with random weights, and their logits of a whole text."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
import transformers as hf

from draftwood.protocols import StateBackend
from draftwood.testing.backends import Mirror

VOCAB = 53
SMALL: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "eos_token_id": [0, 5],
    "pad_token_id": 1,
}


def randomised(model: Any, size: float = 0.25) -> Any:
    """`model` with weights large enough that its logits differ from token to token."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0.0, size)
    return model.eval()


def tiny(config: Any = hf.LlamaConfig, **options: Any) -> Any:
    torch.manual_seed(3)
    return randomised(hf.AutoModelForCausalLM.from_config(config(**SMALL | options)))


def bloom() -> Any:
    torch.manual_seed(3)
    return randomised(
        hf.BloomForCausalLM(hf.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4))
    )


def plain(model: Any, tokens: list[int]) -> torch.Tensor:
    """Logits after `tokens`, without a cache."""
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
    return logits


def against(model: Any, backend: StateBackend) -> Mirror:
    """`backend` compared with a copy of `model`."""
    return Mirror(backend, partial(plain, copy.deepcopy(model)))


def words(length: int) -> list[int]:
    return [(7 * i + 3) % VOCAB for i in range(length)]
