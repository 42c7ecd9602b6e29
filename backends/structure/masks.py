"""The reach of a model's attention layers, by the kind of layer."""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray
from transformers import DynamicCache
from transformers.cache_utils import (
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

from draftwood.base.errors import UnsupportedModel


@attrs.frozen
class Reach:
    """The number of positions back that a kind of layer sees; all of them if both are None.

    Attributes:
        window: a query sees keys less than this many positions before it.
        chunk: a query sees keys in its own block of this many positions.
    """

    window: int | None = None
    chunk: int | None = None

    def limits(self, length: int) -> bool:
        """Whether any query of a sequence of `length` tokens fails to see its first token."""
        return length > (self.window or self.chunk or length)

    def first(self, queries: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first position that queries at these positions see, in the same shape."""
        if self.window is not None:
            return np.maximum(queries - self.window + 1, 0)
        assert self.chunk is not None
        return queries // self.chunk * self.chunk

    def sees(self, queries: NDArray[np.int64], keys: NDArray[np.int64]) -> NDArray[np.bool_]:
        """bool `[rows, queries, keys]` from positions `[rows, queries]` and `[rows, keys]`."""
        queries, keys = queries[:, :, None], keys[:, None]
        if self.window is not None:
            return np.asarray(queries - keys < self.window)
        assert self.chunk is not None
        return np.asarray(queries // self.chunk == keys // self.chunk)


def reaches(config: Any, *, recurrent: bool = False) -> dict[str, Reach]:
    """The reach of every kind of attention layer in a model, by the name transformers gives the kind.

    Args:
        config: of the model.
        recurrent: whether other code runs its recurrent layers, and may leave it without any kind.

    Raises:
        UnsupportedModel: for layers that are not attention with a KV cache, or windows of several sizes.
    """
    text = config.get_text_config(decoder=True)
    layers = DynamicCache(config=config).layers
    layer_types = getattr(text, "layer_types", None)
    kinds: dict[str, Reach] = {}
    for index, layer in enumerate(layers):
        name = type(layer).__name__
        mixes = recurrent and isinstance(layer, LinearAttentionCacheLayerMixin)
        # Reads another layer's keys, or has no attention. By name: transformers 5.17 has no such class.
        if name == "DummyLayer" or (mixes and not isinstance(layer, DynamicLayer)):
            continue
        if type(layer) is DynamicLayer or (mixes and not isinstance(layer, DynamicSlidingWindowLayer)):
            kind, reach = "full_attention", Reach()
        elif type(layer) is DynamicSlidingWindowLayer:
            chunked = getattr(text, "attention_chunk_size", None) is not None
            kind = (
                layer_types[index]
                if layer_types
                else ("chunked_attention" if chunked else "sliding_attention")
            )
            size = layer.sliding_window
            reach = Reach(chunk=size) if kind == "chunked_attention" else Reach(window=size)
        else:
            raise UnsupportedModel(
                f"Layer {index} of {text.model_type} keeps a {name}, which is no plain KV cache."
            )
        if kinds.setdefault(kind, reach) != reach:
            raise UnsupportedModel(
                f"The {kind} layers of {text.model_type} differ in size ({kinds[kind]}, {reach}); one mask "
                "cannot fit them."
            )
    return kinds if kinds or recurrent else {"full_attention": Reach()}
