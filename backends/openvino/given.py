"""A transformers cache that reads past keys and values which a pass is given, and keeps what it adds.

Attention is a model's own, or a function that is registered here. The function is faster: it repeats no key
head for the query heads of its group, and OpenVINO runs it as one operation, which never has all scores of a
prompt in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.masking_utils import sdpa_mask

from draftwood.base.errors import UnsupportedModel

BY_KEY_HEAD = "draftwood_by_key_head"
"""The name by which transformers knows `attend_by_key_head`."""

Pair = tuple[Tensor, Tensor]
"""Keys and values."""


class GivenLayer(CacheLayerMixin):
    """Keys and values of one layer: the given past ones and the new ones of the pass.

    Attributes:
        past: keys and values, each `[rows, kv_heads, slots, head_dim]`.
        new: keys and values of the pass, `[rows, kv_heads, nodes, head_dim]`, after the keys and values
            of earlier passes that are in no slot yet; None before the layer has run.
    """

    is_sliding = False

    def __init__(self, past: Pair, *, before: Pair | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.past = past
        self.new: Pair | None = None
        self._before = before
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: what a pass reads is given."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of the pass; returns them after the past ones."""
        self.new = key_states, value_states
        if self._before is not None:
            keys, values = self._before
            self.new = torch.cat([keys, key_states], 2), torch.cat([values, value_states], 2)
        self.keys, self.values = (
            torch.cat([past.to(new.dtype), new], 2) for past, new in zip(self.past, self.new, strict=True)
        )
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that attention sees, and the index of the first."""
        return self.past[0].shape[2] + query_length, 0

    def get_seq_length(self) -> int:
        """Returns 0: the slots that a pass reads are not the length of a text."""
        return 0

    def get_max_length(self) -> int:
        """Returns -1: no maximum."""
        return -1


class GivenCache(Cache):
    """A cache of `GivenLayer`."""

    def __init__(self, past: Sequence[Pair | None], *, before: Sequence[Pair] | None = None) -> None:
        """A cache over past keys and values.

        Args:
            past: of every layer; None for a layer that keeps none.
            before: what passes before this one have added, if that is in no slot of `past` yet.
        """
        # Where no layer keeps any, none is asked for them.
        like: Any = next((pair for pair in past if pair is not None), None)
        self._keeps = [pair is not None for pair in past]
        added = iter(before or ())
        self._given = [
            GivenLayer(pair or like, before=next(added) if before is not None and pair is not None else None)
            for pair in past
        ]
        super().__init__(layers=list(self._given))

    def added(self) -> list[Pair]:
        """Returns the keys and the values that the pass has added, of every layer that keeps any.

        Raises:
            UnsupportedModel: a layer has not run, or one has that keeps none.
        """
        found = []
        for layer, keeps in zip(self._given, self._keeps, strict=True):
            if (layer.new is not None) != keeps:
                raise UnsupportedModel("its layers do not add the same keys in every pass")
            if layer.new is not None:
                found.append(layer.new)
        return found


def attend_by_key_head(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention that OpenVINO runs as one operation.

    Args:
        module: the layer.
        query: `[rows, heads, nodes, head_dim]`.
        key: `[rows, kv_heads, keys, head_dim]`.
        value: `[rows, kv_heads, keys, value_dim]`.
        attention_mask: additive, `[rows, 1 or heads, nodes, keys]`.
        dropout: 0, as the model is in evaluation mode.
        scaling: of the scores; None: by the size of a head.
        options: `softcap` bounds the scores, `s_aux` `[heads]` are sinks. A bias by position is refused, and
            windows are in the mask.

    Returns:
        `[rows, nodes, heads, value_dim]` and None.

    Raises:
        UnsupportedModel: the layer adds a bias.
    """
    if options.get("position_bias") is not None or attention_mask is None:
        raise UnsupportedModel("its attention adds a bias, or takes no mask")
    # As numbers: sizes that a trace follows cost an engine several operations a layer.
    heads, kv_heads, dim, value_dim = (
        int(size) for size in (query.shape[1], key.shape[1], query.shape[3], value.shape[3])
    )
    group = heads // kv_heads

    def grouped(tensor: Tensor) -> Tensor:
        # Nodes of all heads of a group, head by head.
        return tensor.reshape(tensor.shape[0], kv_heads, -1, tensor.shape[3])

    # There are fewer queries than scores.
    packed = grouped(query) * (dim**-0.5 if scaling is None else scaling)
    scores = packed @ key.transpose(2, 3)
    if (cap := options.get("softcap")) is not None:
        scores = cap * torch.tanh(scores / cap)
    one_for_all = int(attention_mask.shape[1]) == 1
    scores = scores + (attention_mask.repeat(1, 1, group, 1) if one_for_all else grouped(attention_mask))
    if (sinks := options.get("s_aux")) is not None:
        sink = sinks.view(1, heads, 1, 1).to(scores.dtype).expand(scores.shape[0], -1, query.shape[2], -1)
        weights = torch.cat([scores, grouped(sink)], 3).softmax(3)[..., :-1]
    else:
        weights = scores.softmax(3)
    out = weights.to(value.dtype) @ value
    by_head = out.reshape(out.shape[0], kv_heads, group, -1, value_dim).permute(0, 3, 1, 2, 4)
    return by_head.reshape(by_head.shape[0], -1, heads, value_dim), None


AttentionInterface.register(BY_KEY_HEAD, attend_by_key_head)
AttentionMaskInterface.register(BY_KEY_HEAD, sdpa_mask)
