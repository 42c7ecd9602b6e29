"""Tree attention by the kernel: masks of bits in the place of masks of numbers, for any transformers model.

A model hands `attention_mask` on to its attention, and where its layers differ, the one of their kind. What
it gets here is a marker, `[rows, 1, 1, kind + 1]`: its size tells the kind, whatever device it is sent
to, and the bits themselves wait in a context variable.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from draftwood.kernels.tree_attention import dispatch, operation
from draftwood.kernels.tree_attention.mask import TreeMask

TREE = "draftwood_tree"


@attrs.frozen(eq=False)
class PackedMasks:
    """What the nodes of one pass see, for every kind of layer.

    Attributes:
        masks: by kind.
        markers: what `attention_mask=` takes, one tensor, or one for every kind.
    """

    masks: tuple[TreeMask, ...]
    markers: Tensor | dict[str, Tensor]

    @classmethod
    def of(cls, kinds: Sequence[str], tensors: dict[str, Tensor], *, start: int, columns: int) -> PackedMasks:
        """Over what `Visibility.packed_arrays` gave.

        Args:
            kinds: names of the model's kinds of layers, one at least.
            tensors: the arrays on the device.
            start: the slot of column 0, or one behind it; no length exceeds it.
            columns: uncommitted columns, or more than there are.
        """
        masks = bit_masks(kinds, tensors, start=start, columns=columns)
        return cls(masks, markers(kinds, tensors["lengths"]))


def bit_masks(
    kinds: Sequence[str], tensors: dict[str, Tensor], *, start: int, columns: int
) -> tuple[TreeMask, ...]:
    """The mask of every kind; arguments as in `PackedMasks.of`."""
    return tuple(
        [
            TreeMask(
                bits=tensors[f"bits of {kind}"],
                lengths=tensors["lengths"],
                start=start,
                columns=columns,
                first=tensors[f"first of {kind}"],
                counts=tensors["counts"],
                at=tensors["at"],
            )
            for kind in kinds
        ]
    )


def markers(kinds: Sequence[str], lengths: Tensor) -> Tensor | dict[str, Tensor]:
    """What stands for the masks of all kinds, whose rows are those of `lengths`; only shapes are read."""
    blank = lengths.new_empty(len(lengths), 1, 1, len(kinds), dtype=torch.float32)
    return {kind: blank[..., : index + 1] for index, kind in enumerate(kinds)} if len(kinds) > 1 else blank


_now: ContextVar[tuple[TreeMask, ...]] = ContextVar("masks of the pass")


@contextmanager
def under(packed: PackedMasks) -> Iterator[None]:
    """Inside it `tree_attention` attends under these masks."""
    token = _now.set(packed.masks)
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
        attention_mask: a marker of `PackedMasks`.
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
