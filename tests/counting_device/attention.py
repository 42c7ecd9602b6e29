"""Attention on the counting device: one kernel, as CUDA has it, where torch would compute it in steps.

Which kernel attention takes is settled below Python, by what the build of torch has, and one without CUDA has
none for that device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.counting_device.tensor import DeviceTensor, held

OPERATION = "scaled_dot_product_attention"


def attend(
    launched: Callable[[str], None],
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
    """Returns the result of torch's attention; calls `launched` with the name of its kernel."""
    if enable_gqa and query.shape[-3] != key.shape[-3] and attn_mask is not None:
        # No fused kernel serves both.
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
        held(query),
        held(key),
        held(value),
        attn_mask=held(attn_mask),
        is_causal=is_causal,
        scale=scale,
        enable_gqa=enable_gqa,
    )
    return DeviceTensor(out)


@contextmanager
def in_one_kernel(launched: Callable[[str], None]) -> Iterator[None]:
    """Inside it attention of the device's tensors is `attend`; in inference mode it comes as an operation."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        library.impl(OPERATION, partial(attend, launched), "AutogradCUDA")
        yield
