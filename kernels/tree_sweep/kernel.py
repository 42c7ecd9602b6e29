"""One pass of a row over its vocabulary, several programs side by side, in Triton."""

import triton
import triton.language as tl

from draftwood.kernels.class_window.kernel import (
    BUCKETS,
    STAKE,
    UNIT,
    bucket_of,
    is_ordered,
    odds_of,
    ordered_left,
    second_law,
    window_law,
)
from draftwood.kernels.tree_plan import kernel as r

# What a row needs next of its vocabulary.
GOING = tl.constexpr(0)
REJECT = tl.constexpr(1)
CHOOSE = tl.constexpr(2)
CLASS = tl.constexpr(3)
DONE = tl.constexpr(4)

# Partial results of a program.
PARTS = tl.constexpr(8)
SUM = tl.constexpr(0)  # of what is left
LAW_SUM = tl.constexpr(1)  # of the next law before it is normalised
TOP_MASS = tl.constexpr(2)
TOP_TOKEN = tl.constexpr(3)
REST_SUM = tl.constexpr(4)  # of the draft, without the top
ODDS_SUM = tl.constexpr(5)  # without the top


@triton.jit
def drawn_left(plan, numbers, node, until, token, inside):
    """Returns the target's weights left by children before `until` (0: all), its law, and the law's rest."""
    left = r.weights(r.entry(plan, node, r.TARGET), token, inside) * r.number(numbers, node, r.ALLOWANCE)
    child = r.entry(plan, node, r.FIRST_CHILD)
    rest = r.weights(r.entry(plan, child, r.LAW), token, inside)
    while child != until:
        kind = r.entry(plan, child, r.KIND)
        name = r.entry(plan, child, r.TOKEN)
        if kind == r.FULL:
            rest = r.weights(r.entry(plan, child, r.LAW), token, inside)
        alone = tl.where(token == name, 1.0, 0.0).to(tl.float64)
        left = tl.maximum(
            left - r.number(numbers, child, r.ALPHA) * tl.where(kind == r.FIXED, alone, rest), 0.0
        )
        rest = tl.where((token == name) & (kind != r.FULL), 0.0, rest)
        child = r.entry(plan, child, r.NEXT_SIBLING)
    name = r.entry(plan, until, r.TOKEN)
    kind = r.entry(plan, until, r.KIND)
    if (until > 0) & (kind == r.FULL):
        rest = r.weights(r.entry(plan, until, r.LAW), token, inside)
    alone = tl.where(token == name, 1.0, 0.0).to(tl.float64)
    law = tl.where(kind == r.FIXED, alone, rest)
    return left, law, tl.where((token == name) & (until > 0), 0.0, rest)


@triton.jit
def share_of(plan, numbers, child, node):
    """Returns the divisor of the law of which `child` was drawn; 1 where nothing is left of it."""
    total = r.number(numbers, node, r.TOTAL)
    return tl.where((r.entry(plan, child, r.KIND) == r.REMAINING) & (total > 0.0), total, 1.0)


@triton.jit
def measure(
    plan,
    numbers,
    shares,
    tally,
    parts,
    phase,
    node,
    child,
    begin,
    end,
    BLOCK: tl.constexpr,
    CLASSES: tl.constexpr,
):
    """One program's part of a pass over the vocabulary, tokens `begin` to `end`."""
    sums = tl.full([BLOCK], 0.0, tl.float64)
    law_sums = tl.full([BLOCK], 0.0, tl.float64)
    tops = tl.full([BLOCK], 0.0, tl.float64)
    top_tokens = tl.full([BLOCK], -1, tl.int32)
    rests = tl.full([BLOCK], 0.0, tl.float64)
    odds_sums = tl.full([BLOCK], 0.0, tl.float64)
    ordered = is_ordered(plan, node, CLASSES)
    scale = r.number(numbers, node, r.SCALE)
    name = r.entry(plan, child, r.TOKEN)
    for start in range(begin, end, BLOCK):
        token = start + tl.arange(0, BLOCK)
        inside = token < end
        if ordered:
            if CLASSES:
                left, h, draft = ordered_left(plan, numbers, shares, node, token, inside)
                law = h
                rest = tl.where(token == name, 0.0, draft)
                if phase == CLASS:
                    total = r.number(numbers, node, r.TOTAL)
                    is_top = token == r.child_number(numbers, node, r.TOP)
                    odds = odds_of(h, draft, is_top, total, r.number(numbers, node, r.REST))
                    odds_sums += tl.where(inside & (is_top == 0), odds, 0.0)
                    may = inside & (is_top == 0) & (draft > STAKE)
                    tally_tokens(tally, left / scale, h, draft, odds, total, may)
                elif (phase == REJECT) & (r.number(numbers, child, r.WINDOW) > 0.0):
                    f, odds, law = window_law(numbers, shares, child, token, left, h, draft)
                    law_sums += tl.where(inside, second_law(numbers, child, token, name, f, odds, draft), 0.0)
                    rests += tl.where(rest > tops, tops, rest)
                    top_tokens = tl.where(rest > tops, token, top_tokens)
                    tops = tl.maximum(rest, tops)
                after = tl.where(phase == REJECT, tl.maximum(left - scale * law, 0.0), left)
                sums += tl.where(inside, after, 0.0)
        else:
            left, law, rest = drawn_left(
                plan, numbers, node, tl.where(phase == REJECT, child, 0), token, inside
            )
            law_sums += rest
            taken = scale / share_of(plan, numbers, child, node)
            after = tl.where(phase == REJECT, tl.maximum(left - taken * law, 0.0), left)
            sums += tl.where(inside, after, 0.0)
    top, top_token, others = likeliest(tops, top_tokens)
    tl.store(parts + SUM, tl.sum(sums, 0))
    tl.store(parts + LAW_SUM, tl.sum(law_sums, 0))
    tl.store(parts + TOP_MASS, top)
    tl.store(parts + TOP_TOKEN, top_token.to(tl.float64))
    tl.store(parts + REST_SUM, tl.sum(rests, 0) + others)
    tl.store(parts + ODDS_SUM, tl.sum(odds_sums, 0))


@triton.jit
def tally_tokens(tally, share, h, draft, odds, total, may):
    """Add what tokens have to their buckets, as integers, whose sum is the same in any order."""
    bucket = tally + bucket_of(share, h, draft, total)
    whole = tl.where(total > 0.0, total, 1.0)
    add_parts(bucket, share, may)
    add_parts(bucket + BUCKETS, h, may)
    add_parts(bucket + 2 * BUCKETS, draft / whole, may)
    add_parts(bucket + 3 * BUCKETS, odds * total, may)


@triton.jit
def add_parts(places, values, may):
    tl.atomic_add(places, tl.where(may, values * UNIT, 0.0).to(tl.int64), mask=may, sem="relaxed")


@triton.jit
def likeliest(tops, tokens):
    """The largest of `tops`, the first token that has it, and the sum of the others."""
    top = tl.max(tops, 0)
    token = tl.min(tl.where(tops == top, tokens, 2147483647), 0)
    return top, token, tl.sum(tl.where(tokens == token, 0.0, tops), 0)


@triton.jit
def all_parts(partials, programs, part, PROGRAMS: tl.constexpr):
    """One partial result of all programs."""
    program = tl.arange(0, PROGRAMS)
    # Another multiprocessor wrote it in this launch, which no first-level cache may hide.
    return tl.load(partials + program * PARTS + part, mask=program < programs, other=0.0, volatile=True)
