"""Tree attention by the kernel: masks of bits in the place of masks of numbers, for any transformers model.

A model hands `attention_mask` on to its attention, and where its layers differ, the one of their kind. What
it gets here is a marker, `[rows, 1, 1, kind + 1]`: its size tells the kind, whatever device it is sent
to, and the bits themselves wait in a context variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from draftwood.backends.nodes.buckets import Shape
from draftwood.backends.nodes.pass_inputs import Held, Inputs, PassInputs, padded
from draftwood.backends.nodes.region import own_bits
from draftwood.kernels.tree_attention import dispatch, operation
from draftwood.kernels.tree_attention.mask import TreeMask

TREE = "draftwood_tree"


class BitMasks:
    """Masks of one bit a pair of nodes, for attention by the tree kernel.

    Attributes:
        attention: inside it the model attends by the tree kernel.
    """

    def __init__(self, kinds: Sequence[str], *, attention: AbstractContextManager[None]) -> None:
        """Masks for layers of these kinds, one at least."""
        self.attention = attention
        self._kinds = tuple(kinds)

    def arrays(self, inputs: PassInputs, room: Shape | None) -> Held:
        """The tensors of a `TreeMask` of every kind."""
        rows, nodes = inputs.tokens.shape
        lines = (rows, nodes) if room is None else (room.rows, room.nodes)
        held: Held = {
            "lengths": _lines(inputs.lengths.astype(np.int32), (rows,), lines[:1]),
            "counts": np.full(lines[0], lines[1], np.int32),
            "at": np.array([inputs.base], np.int32),
        }
        for kind, bits, first in zip(self._kinds, inputs.bits, inputs.first, strict=True):
            seen = _lines(bits, (rows, *bits.shape[1:]), (rows, *bits.shape[1:]))
            if room is not None:
                # Padding sees itself, since softmax needs something.
                start, words = inputs.staged.start, room.columns // 32
                own = own_bits(start + room.nodes, words=words)[start:]
                place = np.broadcast_to(own, (*lines, words)).copy()
                place[:rows, :nodes, : seen.shape[2]] = seen
                seen = place
            held[f"bits of {kind}"] = seen.view(np.int32)
            first = np.zeros((rows, nodes), np.int32) if first is None else first.astype(np.int32)
            held[f"first of {kind}"] = _lines(first, (rows, nodes), lines)
        return held

    def of(self, tensors: Inputs, shape: Shape) -> tuple[Tensor | dict[str, Tensor], tuple[TreeMask, ...]]:
        """Returns the argument that names the masks of all kinds, and the masks.

        Args:
            tensors: what `arrays` gave, on the device.
            shape: of the pass, by which the arrays are padded.
        """
        masks = [
            TreeMask(
                bits=tensors[f"bits of {kind}"],
                lengths=tensors["lengths"],
                start=shape.text,
                columns=shape.columns,
                first=tensors[f"first of {kind}"],
                counts=tensors["counts"],
                at=tensors["at"],
            )
            for kind in self._kinds
        ]
        # Only the shapes of markers are read.
        blank = tensors["lengths"].new_empty(shape.rows, 1, 1, len(masks), dtype=torch.float32)
        markers = {kind: blank[..., : index + 1] for index, kind in enumerate(self._kinds)}
        return (markers if len(masks) > 1 else blank), tuple(masks)


def _lines(values: NDArray[Any], of_rows: tuple[int, ...], size: tuple[int, ...]) -> NDArray[Any]:
    """`values`, perhaps one line for all rows, a line for every row, padded to `size`."""
    return np.require(padded(np.broadcast_to(values, of_rows), size), requirements=["C", "W"])


_now: ContextVar[tuple[TreeMask, ...]] = ContextVar("masks of the pass")


@contextmanager
def under(masks: tuple[TreeMask, ...]) -> Iterator[None]:
    """Inside it `tree_attention` attends under these masks, one for every kind of layer."""
    token = _now.set(masks)
    try:
        yield
    finally:
        _now.reset(token)


class Traced:
    """Where a trace finds the masks of its pass: Dynamo does not follow context variables."""

    masks: tuple[TreeMask, ...] = ()


TRACED = Traced()


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor,
    dropout: float = 0.0,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention under the masks of `under`.

    Args:
        module: the layer, for what is left to transformers' own function.
        query: `[batch, heads, queries, head_dim]`.
        key: `[batch, kv_heads, keys, head_dim]`.
        value: `[batch, kv_heads, keys, value_dim]`.
        attention_mask: a marker of `BitMasks`.
        dropout: 0, as the model is in evaluation mode.
        scaling: of the scores; default: 1 over the root of head_dim.
        softcap: of the scores.
        s_aux: sinks `[heads]`.
        options: whatever else the layer passes; a bias by position goes to transformers' own function.

    Returns:
        `[batch, queries, heads, value_dim]` and None.
    """
    traced = torch.compiler.is_compiling()
    masks = TRACED.masks if traced else _now.get()
    mask = masks[attention_mask.shape[-1] - 1].to(query.device)
    if any(options.get(name) is not None for name in ("position_bias", "cache")):
        visible = mask.visible().unsqueeze(1)
        return sdpa_attention_forward(
            module, query, key, value, visible, dropout=dropout, scaling=scaling, **options
        )
    attend = operation.attend if traced else dispatch.attend
    out = attend(
        queries=query,
        keys=key,
        values=value,
        mask=mask,
        scale=query.shape[-1] ** -0.5 if scaling is None else scaling,
        softcap=softcap,
        sinks=s_aux,
    )
    return out, None


AttentionInterface.register(TREE, tree_attention)
AttentionMaskInterface.register(TREE, sdpa_mask)
