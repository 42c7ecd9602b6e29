"""The MTP block of LongCat-Flash, half of one of its doubled layers; transformers has no class for it."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import Module
from transformers.models.longcat_flash.modeling_longcat_flash import (
    LongcatFlashMLA,
    LongcatFlashMLP,
    LongcatFlashRMSNorm,
)


class DenseLayer(Module):
    """Attention and an MLP without experts, each with a norm before it.

    Source: LongCat-Flash (arXiv 2509.01322), section 2.3.
    """

    def __init__(self, config: Any, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = LongcatFlashMLA(config, layer_idx)
        self.mlp = LongcatFlashMLP(config)
        self.input_layernorm, self.post_attention_layernorm = (
            LongcatFlashRMSNorm(config.hidden_size, eps=config.rms_norm_eps) for _ in range(2)
        )

    def forward(self, hidden_states: Tensor, **options: Any) -> Tensor:
        """Returns states; its attention takes `options`."""
        attended, _ = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **options)
        hidden_states = hidden_states + attended
        out: Tensor = hidden_states + self.mlp(self.post_attention_layernorm(hidden_states))
        return out
