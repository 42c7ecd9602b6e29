"""Draws without replacement in Triton; README.md has the derivation."""

import triton
import triton.language as tl


@triton.jit
def first_above(weights, indices, below, bound, NONE: tl.constexpr):
    """The first of `indices` where `below` and the cumulative `weights` exceed `bound`.

    Rounding may leave none; the last index with any weight is meant then.
    """
    heights = below + tl.cumsum(weights, 0)
    # A scan by parts need not rise at every index, so that one without weight is excluded by name.
    first = tl.min(tl.where((heights > bound) & (weights > 0.0), indices, NONE), 0)
    last = tl.max(tl.where(weights > 0.0, indices, -1), 0)
    return tl.where(first < NONE, first, last)


@triton.jit(do_not_specialize=["stride", "vocab", "count"])
def draw(
    probs, uniforms, limits, floors, out, stride, vocab, count, BLOCK: tl.constexpr, BLOCKS: tl.constexpr
):
    """All draws of one node; see `dispatch.draw_on_device`."""
    node = tl.program_id(0).to(tl.int64)
    probs += node * stride
    tokens = out + node * 3 * (count + 1)
    chances, left = tokens + 1, tokens + 2
    uniforms += node * count
    draws = tl.load(limits + node).to(tl.int32)
    floor = tl.load(floors + node)
    blocks = tl.arange(0, BLOCKS)
    sums = tl.full([BLOCKS], 0.0, tl.float64)
    if draws >= 0:
        for block in range(0, tl.cdiv(vocab, BLOCK)):
            token = block * BLOCK + tl.arange(0, BLOCK)
            weights = tl.load(probs + token, mask=token < vocab, other=0.0).to(tl.float64)
            sums = tl.where(blocks == block, tl.sum(weights, 0), sums)
        tl.store(left, tl.sum(sums, 0).to(tl.float32).to(tl.int32, bitcast=True))
    number = tl.full((), 0, tl.int32)
    total = tl.sum(sums, 0)
    # NaN compares as false, and is then drawn from, which shows it.
    while (number < draws) & ((total <= floor) == 0):
        bound = tl.load(uniforms + number) * total
        block = first_above(sums, blocks, 0.0, bound, BLOCKS)
        token = block * BLOCK + tl.arange(0, BLOCK)
        weights = tl.load(probs + token, mask=(token < vocab) & (token >= 0), other=0.0).to(tl.float64)
        for earlier in range(0, number):
            weights = tl.where(token == tl.load(tokens + 3 * earlier), 0.0, weights)
        below = tl.sum(tl.where(blocks < block, sums, 0.0), 0)
        drawn = first_above(weights, token, below, bound, BLOCK * BLOCKS)
        sums = tl.where(blocks == block, tl.sum(tl.where(token == drawn, 0.0, weights), 0), sums)
        chance = tl.load(probs + drawn, mask=drawn >= 0, other=0.0)
        sound = (total >= 0.0) & (total < float("inf"))
        total = tl.sum(sums, 0)
        tl.store(tokens + 3 * number, tl.where(sound, drawn, -2))
        tl.store(chances + 3 * number, chance.to(tl.int32, bitcast=True))
        tl.store(left + 3 * (number + 1), total.to(tl.float32).to(tl.int32, bitcast=True))
        number += 1
        # The next draw reads what one thread has written.
        tl.debug_barrier()
    for later in range(number, draws):
        tl.store(tokens + 3 * later, -1)
        tl.store(left + 3 * (later + 1), total.to(tl.float32).to(tl.int32, bitcast=True))
