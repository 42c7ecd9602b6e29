"""A block drafter over a known text: its guesses after many places at once."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood.strategies.blocks.head import BlockHead, KeysValues, slots_of

_SLOTS_AT_ONCE = 1024


def blocks_at(
    head: BlockHead,
    roots: Float[Tensor, "rows blocks hidden"],
    mask: Float[Tensor, " hidden"],
    *,
    known: KeysValues,
    places: Int[Tensor, " blocks"],
    shift: int = 0,
) -> Float[Tensor, "rows blocks depths hidden"]:
    """Returns states of the guessing slots of one block after each of `places`.

    Args:
        head: the drafter.
        roots: embeddings of the tokens that follow the places.
        mask: embedding of the mask token.
        known: `head.context` of a whole text, `[rows, n, ...]`; a block sees the text up to its place.
        places: where blocks begin, on the CPU.
        shift: added to the positions of the slots after the root's, for checks.
    """
    rows, blocks, width = roots.shape
    count, length = head.config.block_size, known[0][0].shape[1]
    slots = slots_of(roots.reshape(-1, width), mask, count).reshape(rows, blocks * count, width)
    slot = torch.arange(count)
    standing = (places.unsqueeze(1) + 1 + slot + shift * (slot > 0)).flatten()
    block = torch.arange(blocks).repeat_interleave(count)
    back = standing.unsqueeze(1) - torch.cat([torch.arange(length), standing])
    there = torch.cat(
        [torch.arange(length) <= places[block].unsqueeze(1), block.unsqueeze(1) == block.unsqueeze(0)], 1
    )
    out = head.through(
        slots, standing.unsqueeze(0), known=known, back=back.unsqueeze(0), there=there.unsqueeze(0)
    )
    return out.view(rows, blocks, count, width)[:, :, count - head.config.depths :]


def unrolled_blocks(
    head: BlockHead,
    embeddings: Float[Tensor, "rows n hidden"],
    mask: Float[Tensor, " hidden"],
    states: Float[Tensor, "rows n hidden"],
    *,
    depths: int,
    first: int = 0,
    shift: int = 0,
) -> Iterator[Float[Tensor, "rows n hidden"]]:
    """Yields the guesses of `head` at each place of a text, for every number of drafted tokens before it.

    At depth d, place i holds the state of the block that began d places before: its guess of what follows
    token i + 1, as in `heads.unrolled`. Places before `first`, and depths that a block does not have, are 0.

    Args:
        head: the drafter.
        embeddings: of the tokens 1 to n of a text.
        mask: embedding of the mask token.
        states: what `head.project` makes of the features of the tokens 0 to n - 1.
        depths: how many.
        first: the first place that matters.
        shift: added to the positions of the slots after the root's, for checks.
    """
    known, count = head.context(states), states.shape[1]
    out = states.new_zeros(depths, *states.shape)
    begins = torch.arange(max(first - depths + 1, 0), count)
    for places in begins.split(max(1, _SLOTS_AT_ONCE // head.config.block_size)):
        found = blocks_at(head, embeddings[:, places], mask, known=known, places=places, shift=shift)
        for depth in range(min(depths, head.config.depths)):
            inside = places[places + depth < count]
            out[depth, :, inside + depth] = found[:, : len(inside), depth]
    yield from out
