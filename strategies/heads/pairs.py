"""Heads that read pairs: what they have in common, whatever their layer is.

A *pair* is a token and a state: of the committed text, token i + 1 and what the target made of token i;
below the root, a drafted token and what the head recycled at its parent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from draftwood.strategies.heads.rotation import Rotation

HeadsAndWidth = tuple[int, int]
"""How many vectors are kept of a pair, and how wide they are."""


class PairAttention(Protocol):
    """The attention of a head's layer while it runs: which keys are seen, and the outputs."""

    def hold(self, keys: Tensor, values: Tensor, layer: int = 0) -> tuple[Tensor, Tensor]:
        """Keep the keys and values of these pairs in a layer; `attend` then attends in that layer.

        Args:
            keys: `[rows, heads, n, width]`.
            values: likewise; their width may differ.
            layer: of the head, counted from 0.

        Returns:
            Keys and values `[rows, heads, slots, width]`, or what the layer makes keys and values of.
        """
        ...

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
        """Let `queries` `[rows, heads, n, dim]` attend to keys and values made from the output of `hold`.

        Returns:
            `[rows, n, heads, dim of values]`.
        """
        ...


class IndexedAttention(PairAttention, Protocol):
    """Attention of a layer whose indexer chooses, by separate keys, which ones a pair sees."""

    @property
    def seen(self) -> Tensor:
        """The keys that the pairs may see, bool `[rows, n, slots]`; one row may be for all."""
        ...

    def hold_index(self, keys: Tensor) -> Tensor:
        """Keep the indexer's keys of these pairs, `[rows, n, width]`; returns all `[rows, slots, width]`."""
        ...

    def attend_to(
        self, chosen: Tensor, queries: Tensor, keys: Tensor, values: Tensor, scale: float
    ) -> Tensor:
        """Let queries attend as `attend` does, to the slots `chosen` `[rows, n, k]` among the seen ones."""
        ...


class PairHead(Protocol):
    """A head over pairs, as `PairRows`, `unrolled` and the drafters use it.

    Attributes:
        width: of states and embeddings.
        vocab_size: tokens of the target.
        kept: the shapes of what is kept of a pair in all layers: keys, values, and keys of an indexer.
        text_attends: what is kept of a pair depends on the pairs before it, since there are several layers;
            then a text is read by `step`, and else by `keys_values`.
        like: some tensor of the dtype and device of its passes.
        embed_tokens: its own table of words; None where it is the target's.
        rotation: undone in features and embeddings of the target; None where there is none.
    """

    embed_tokens: Any
    rotation: Rotation | None

    @property
    def width(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def kept(self) -> Sequence[HeadsAndWidth]: ...
    @property
    def text_attends(self) -> bool: ...
    @property
    def like(self) -> Tensor: ...

    def taps_in(self, layers: int) -> tuple[int, ...]:
        """Returns the features that it reads of a target of `layers` layers, as `keep_features` has them."""
        ...

    def project(self, features: Tensor) -> Tensor:
        """States `[..., width]` of the target's features."""
        ...

    def step(self, embeddings: Tensor, states: Tensor, positions: Tensor, attention: PairAttention) -> Tensor:
        """Returns the last layer's outputs for pairs, `[rows, n, width]`.

        Args:
            embeddings: of the tokens, `[rows, n, width]`.
            states: `[rows, n, width]`.
            positions: `[rows, n]`; what counts are their differences.
            attention: what they see.
        """
        ...

    def keys_values(self, embeddings: Tensor, states: Tensor, positions: Tensor) -> Sequence[Tensor]:
        """Returns what is kept of pairs, each `[rows, n, heads, width]`, as `step` hands it to `hold`.

        It is all that later pairs see of one, and with a single layer it depends on nothing else: a text is
        read without attention. Arguments as for `step`. Not of heads whose `text_attends` is true.
        """
        ...

    def logits(self, out: Tensor) -> Tensor:
        """Logits of what `step` gave, over the head's own tokens."""
        ...

    def target_logits(self, out: Tensor) -> Tensor:
        """Returns logits over the target's tokens `[..., vocab_size]`, -inf for those never proposed."""
        ...

    def recycled(self, out: Tensor) -> Tensor:
        """Returns the state that a token drafted after `out` is paired with."""
        ...


def among(seen: Tensor, chosen: Tensor) -> Tensor:
    """Returns which slots a query sees, bool `[rows, n, slots]`: the chosen ones that it may see.

    Args:
        seen: which it may see, likewise; one row may be for all.
        chosen: slots, `[rows, n, k]`.
    """
    if chosen.shape[-1] >= seen.shape[-1]:
        return seen
    own = torch.zeros(*chosen.shape[:2], seen.shape[-1], dtype=torch.bool, device=seen.device)
    return own.scatter(-1, chosen.long(), True) & seen


def grouped_attention(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, *, scale: float) -> Tensor:
    """Attention where several query heads share one of keys.

    Args:
        queries: `[rows, heads, n, dim]`.
        keys: `[rows, key_value_heads, slots, dim]`.
        values: `[rows, key_value_heads, slots, width]`.
        mask: bool `[rows, n, slots]`, True where a query sees a slot, one at least.
        scale: of the products of queries and keys.

    Returns:
        `[rows, n, heads, width]`.
    """
    rows, heads, count, dim = queries.shape
    shared = keys.shape[1]
    group = heads // shared
    # Query heads of one key head follow each other, so that keys are not copied for each.
    folded = queries.reshape(rows, shared, group * count, dim)
    seen = mask.unsqueeze(1).repeat(1, 1, group, 1)
    out = scaled_dot_product_attention(folded, keys, values, attn_mask=seen, scale=scale)
    return out.reshape(rows, heads, count, -1).transpose(1, 2)
