"""The attention that a model uses while a tree runs through it.

A mask keeps transformers' SDPA from reading grouped keys in place: it copies every key and value once
for each head of its group, in every layer of every pass. `grouped_sdpa` does not, which saves 2 to 8 % of
a pass of 8 nodes on a CPU. On a GPU no mask is made, where `tree_kernel` supports the model.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask
from transformers.utils import logging as hf_logging

from draftwood.backends.attention.tree_kernel import TREE
from draftwood.base.errors import UnsupportedModel
from draftwood.kernels import support
from draftwood.kernels.tree_attention.dispatch import unsupported

log = logging.getLogger(__name__)

GROUPED = "draftwood_grouped_sdpa"

CHOSEN = "_attn_implementation_internal"
"""The attribute that the property `_attn_implementation` of a configuration sets."""

BLOCK = 128
"""Queries of a long pass that a CPU attends for at once."""


def grouped_sdpa(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """SDPA under a mask `[batch, 1, queries, keys]` without copying grouped keys and values.

    Args:
        module: the layer, for what is left to transformers' own function.
        query: `[batch, heads, queries, head_dim]`.
        key: `[batch, kv_heads, keys, head_dim]`.
        value: `[batch, kv_heads, keys, value_dim]`.
        attention_mask: additive or bool.
        dropout: 0, as the model is in evaluation mode.
        scaling: of the scores.
        options: whatever else the layer passes; a bias by position goes to transformers' own function.

    Returns:
        `[batch, queries, heads, value_dim]` and None.
    """
    queries, keys, on_cpu = query.shape[2], key.shape[2], query.device.type == "cpu"
    group = query.shape[1] // key.shape[1]
    long = on_cpu and BLOCK < queries <= keys
    packed = group > 1 and (not on_cpu or group >= 4 or (queries <= 16 and keys >= 4096))
    # transformers itself copies nothing for a single query.
    grouped = group > 1 and (queries > 1 or (on_cpu and packed))
    served = (grouped or long) and (
        attention_mask.shape[1] == 1 if attention_mask is not None else queries == 1
    )
    get = options.get
    if (
        not served
        or get("position_bias") is not None
        or get("softcap") is not None
        or get("cache") is not None
    ):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    if long:
        return blockwise_sdpa(query, key, value, attention_mask, scaling), None
    if packed:
        return packed_sdpa(query, key, value, attention_mask, scaling), None
    out = scaled_dot_product_attention(
        query, key, value, attn_mask=attention_mask, scale=scaling, enable_gqa=True
    )
    return out.transpose(1, 2).contiguous(), None


def blockwise_sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None) -> Tensor:
    """Attends in blocks of queries, each without the keys after it, which SDPA on a CPU would compute too.

    A node sees no column after its own, and as many keys follow that column as nodes follow the node. In
    a captured pass, which reads its buffers whole, there are more.
    """
    queries, keys = query.shape[2], key.shape[2]
    blocks = []
    for start in range(0, queries, BLOCK):
        stop = min(start + BLOCK, queries)
        seen = keys - queries + stop
        out = scaled_dot_product_attention(
            query[:, :, start:stop],
            key[:, :, :seen],
            value[:, :, :seen],
            attn_mask=mask[:, :, start:stop, :seen],
            scale=scaling,
            enable_gqa=True,
        )
        blocks.append(out.transpose(1, 2))
    return torch.cat(blocks, 1)


def packed_sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float | None) -> Tensor:
    """Attends by SDPA with the heads of a group as more queries of one head.

    On accelerators a mask together with `enable_gqa` would leave the fused kernels. On a CPU SDPA reads the
    keys of a group once for each of its heads; packed, once in all. With 2 cores and 5 queries, groups of 4
    and 8 take half of the time in bfloat16. In float32 they take a third less after 4,096 keys, and a tenth
    more after 256; so do groups of two.
    """
    batch, heads, queries, _ = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    out = scaled_dot_product_attention(
        query.reshape(batch, kv_heads, group * queries, -1),
        key,
        value,
        attn_mask=None if mask is None else mask.repeat(1, 1, group, 1),
        scale=scaling,
    )
    return out.reshape(batch, heads, queries, -1).transpose(1, 2).contiguous()


AttentionInterface.register(GROUPED, grouped_sdpa)
AttentionMaskInterface.register(GROUPED, sdpa_mask)


Configs = Sequence[tuple[dict[str, Any], str]]
"""The attributes of a model's configurations, and the attention that each comes with."""


def _restore(configs: Configs) -> None:
    for config, before in configs:
        config[CHOSEN] = before


class Attending:
    """Context manager: inside it a model attends by the function of a name; outside, by its own."""

    def __init__(self, configs: Configs, name: str) -> None:
        """Inside it the attention of these configurations is `name`; outside, what each comes with."""
        self._configs, self._name = configs, name

    def __enter__(self) -> None:
        for config, _ in self._configs:
            config[CHOSEN] = self._name

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for config, before in self._configs:
            config[CHOSEN] = before


class TreeAttention:
    """The attention that a model uses in a pass over a tree.

    Attributes:
        by_numbers: inside it the model attends under a mask of numbers.
        by_bits: inside it the model attends by the tree kernel.

    Raises:
        UnsupportedModel: on construction, for a model whose kernel takes no mask and cannot be exchanged.
    """

    def __init__(self, model: Any) -> None:
        before = model.config._attn_implementation
        # Not every attribute of that name is a configuration.
        values = [getattr(module, "config", None) for module in model.modules()]
        configs = {id(config): config for config in values if isinstance(config, PreTrainedConfig)}
        # Through a configuration's own attributes and their checks it costs 10 us a time.
        self._configs = [(vars(config), config._attn_implementation) for config in configs.values()]
        self._model = model
        name = before if before == "eager" else self._best(model, before)
        self.by_numbers = Attending(self._configs if name != before else [], name)
        self.by_bits = Attending(self._configs, TREE)

    def takes_bits(self, device: torch.device) -> bool:
        """Whether a pass on `device` may attend by the tree kernel."""
        return support.objection_on(device) is None and self._takes_bits

    @cached_property
    def _takes_bits(self) -> bool:
        text = self._model.config.get_text_config(decoder=True)
        dim = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        if not support.use_kernel("tree_attention", unsupported(self._model.dtype, dim)):
            return False
        try:
            return _accepts(self._model, TREE)
        finally:
            _restore(self._configs)

    def _best(self, model: Any, before: str) -> str:
        try:
            usable = [name for name in ("sdpa", GROUPED, "eager") if name == before or _accepts(model, name)]
        finally:
            _restore(self._configs)
        if "sdpa" in usable:
            name = GROUPED if GROUPED in usable else "sdpa"
        elif "eager" in usable:
            name = "eager"
        else:
            raise UnsupportedModel(
                f"{type(model).__name__} uses {before} attention, which takes no tree mask, and has neither "
                "SDPA nor eager attention to switch to."
            )
        if before != "sdpa":
            log.info(
                "%s takes no tree mask; trees of %s use %s attention.", before, type(model).__name__, name
            )
        return name


def _accepts(model: Any, name: str) -> bool:
    loud = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        model.set_attn_implementation(name)
    except (ValueError, ImportError):
        return False
    finally:
        hf_logging.set_verbosity(loud)
    # A model that cannot exchange its attention only warns.
    return bool(model.config._attn_implementation == name)
