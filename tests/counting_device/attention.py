"""Attention on the counting device: one kernel, as CUDA has it, where torch would compute it in steps.

Which kernel attention takes is settled below Python, by what the build of torch has. One without CUDA has none
for that device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.counting_device.tensor import DeviceTensor, held

OPERATION = "scaled_dot_product_attention"


@contextmanager
def in_one_kernel(launched: Callable[[str], None]) -> Iterator[None]:
    """Inside it attention of the device's tensors calls `launched` with the kernel's name."""

    def attend(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        grouped = enable_gqa and query.shape[-3] != key.shape[-3]
        if grouped and attn_mask is not None:  # no fused kernel serves both
            return torch.ops.aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=True
            )[0]
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            attn_mask = torch.where(attn_mask, 0.0, -torch.inf).to(query.dtype)
        tensors = [one for one in (query, key, value, attn_mask) if one is not None]
        if not all(isinstance(one, DeviceTensor) for one in tensors):
            raise RuntimeError("Expected query, key, value and mask to be on the same device, cuda:0")
        launched(OPERATION)
        out = scaled_dot_product_attention(
            *held((query, key, value)),
            attn_mask=held(attn_mask),
            is_causal=is_causal,
            scale=scale,
            enable_gqa=enable_gqa,
        )
        return DeviceTensor(out)

    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl(OPERATION, attend, "AutogradCUDA")
        yield
