"""Traversal and class order down a tree in Triton, several programs a row; README.md has the derivation."""

import triton
import triton.language as tl

from draftwood.kernels.class_window.kernel import BUCKETS, classed, is_ordered, ordered_left
from draftwood.kernels.tree_plan import kernel as r
from draftwood.kernels.tree_sweep.kernel import (
    CHOOSE,
    CLASS,
    DONE,
    GOING,
    LAW_SUM,
    ODDS_SUM,
    PARTS,
    REJECT,
    REST_SUM,
    SUM,
    TOP_MASS,
    TOP_TOKEN,
    all_parts,
    drawn_left,
    likeliest,
    measure,
    share_of,
)

DUST = tl.constexpr(5.551115123125783e-17)  # 2^-54


@triton.jit
def failed(plan, numbers, partials, node, child, programs, CLASSES: tl.constexpr, PROGRAMS: tl.constexpr):
    """Settle that `child` has failed, of whose law the pass has made sums."""
    scale = r.number(numbers, node, r.SCALE)
    ordered = is_ordered(plan, node, CLASSES)
    left = (
        tl.sum(all_parts(partials, programs, SUM, PROGRAMS), 0) + 1.0 - r.number(numbers, node, r.ALLOWANCE)
    )
    law_sum = tl.sum(all_parts(partials, programs, LAW_SUM, PROGRAMS), 0)
    share = tl.where(ordered, 1.0, share_of(plan, numbers, child, node))
    # In floating point nothing may be left although the child failed; all then stays as it was.
    r.keep(numbers, child, r.ALPHA, tl.where(left > 0.0, scale / share, 0.0))
    r.keep(numbers, node, r.SCALE, tl.where(left > 0.0, left, scale))
    if ordered:
        if CLASSES:
            last = r.child_number(numbers, node, r.LAST_TRIED)
            if last > 0:
                r.keep(numbers, last, r.NEXT_TRIED, child.to(tl.float64))
            else:
                r.keep(numbers, node, r.FIRST_TRIED, child.to(tl.float64))
            r.keep(numbers, node, r.LAST_TRIED, child.to(tl.float64))
            r.keep(numbers, child, r.NEXT_TRIED, 0.0)
            if r.number(numbers, child, r.WINDOW) > 0.0:
                tokens = all_parts(partials, programs, TOP_TOKEN, PROGRAMS).to(tl.int32)
                top, token, rest = likeliest(all_parts(partials, programs, TOP_MASS, PROGRAMS), tokens)
                rest += tl.sum(all_parts(partials, programs, REST_SUM, PROGRAMS), 0)
                r.keep(numbers, child, r.SIZE, law_sum)
                r.keep(numbers, node, r.TOTAL, rest + top)
                r.keep(numbers, node, r.TOP, token.to(tl.float64))
                r.keep(numbers, node, r.REST, rest)
    elif r.entry(plan, child, r.KIND) != r.FULL:
        r.keep(numbers, node, r.TOTAL, law_sum)


@triton.jit
def masses(plan, numbers, shares, node, child, CLASSES: tl.constexpr):
    """The target's probability of the token of `child`, and that of the law by which it is tried."""
    token = tl.full([1], 0, tl.int64) + r.entry(plan, child, r.TOKEN)
    inside = token >= 0
    left = tl.full([1], 0.0, tl.float64)
    law = tl.full([1], 0.0, tl.float64)
    share = tl.full((), 1.0, tl.float64)
    if is_ordered(plan, node, CLASSES):
        if CLASSES:
            left, law, _ = ordered_left(plan, numbers, shares, node, token, inside)
    else:
        left, law, _ = drawn_left(plan, numbers, node, child, token, inside)
        share = share_of(plan, numbers, child, node)
    return tl.sum(left, 0) / r.number(numbers, node, r.SCALE), tl.sum(law, 0) / share


@triton.jit
def visit(plan, numbers, node, allowance):
    """Go to `node`; its first child, and whether the law of that is a distribution."""
    first = r.entry(plan, node, r.FIRST_CHILD)
    r.keep(numbers, node, r.ALLOWANCE, allowance)
    r.keep(numbers, node, r.SCALE, 1.0)
    r.keep(numbers, node, r.WAITING, first.to(tl.float64))
    r.keep(numbers, node, r.LAST, first.to(tl.float64))
    r.keep(numbers, node, r.FIRST_TRIED, 0.0)
    r.keep(numbers, node, r.LAST_TRIED, 0.0)
    return first, r.number(numbers, node, r.SOUND) > 0.0


@triton.jit
def advance(
    plan,
    numbers,
    shares,
    state,
    node,
    child,
    used,
    tried,
    target_mass,
    draft_mass,
    sound,
    leaf_first,
    CLASSES: tl.constexpr,
):
    """Go on until a pass over the vocabulary is needed.

    `child` is the next one to try at `node`, 0 for none; of one whose masses are known, `tried` is not 0.
    """
    phase = tl.where(sound, GOING, DONE)
    while phase == GOING:
        # What one thread has written is read by all.
        tl.debug_barrier()
        ordered = is_ordered(plan, node, CLASSES)
        if ordered & (tried == 0):
            waiting = r.child_number(numbers, node, r.WAITING)
            last = r.child_number(numbers, node, r.LAST)
            phase = tl.where((waiting > 0) & (r.entry(plan, last, r.NEXT_SIBLING) > 0), CLASS, GOING)
            child = waiting
        if phase == GOING:
            if child > 0:
                if tried == 0:
                    target_mass, draft_mass = masses(plan, numbers, shares, node, child, CLASSES)
                    if ordered:
                        r.keep(numbers, node, r.WAITING, 0.0)
                        r.keep(numbers, child, r.WINDOW, 0.0)
                tried = tl.full((), 0, tl.int32)
                chance = target_mass / tl.where(draft_mass > 0.0, draft_mass, 1.0)
                chance = tl.where(draft_mass > 0.0, tl.minimum(chance, 1.0), 1.0)
                sound = (target_mass >= 0.0) & (target_mass < float("inf"))
                goes = (target_mass > 0.0) & (chance >= DUST)
                if (leaf_first == 0) & goes:
                    u = r.uniform(plan, used)
                    # NaN marks the end of the tape.
                    sound = sound & (u >= 0.0)
                    used += 1
                    goes = u < chance
                    chance = tl.full((), 1.0, tl.float64)
                phase = tl.where(goes, GOING, REJECT)
                if goes:
                    node = child
                    child, whole = visit(plan, numbers, node, chance)
                    sound = sound & whole
            else:
                phase = tl.full((), CHOOSE, tl.int32)
                if leaf_first != 0:
                    u = r.uniform(plan, used)
                    sound = u >= 0.0
                    used += 1
                    deficit = 1.0 - r.number(numbers, node, r.ALLOWANCE)
                    if (u >= 1.0 - deficit / r.number(numbers, node, r.SCALE)) & (node > 0):
                        child = node
                        node = r.entry(plan, node, r.PARENT)
                        phase = tl.full((), REJECT, tl.int32)
            phase = tl.where(sound, phase, DONE)
    tl.store(state + r.NODE, node)
    tl.store(state + r.CHILD, tl.where(phase == REJECT, child, 0))
    tl.store(state + r.USED, used.to(tl.int64))
    tl.store(state + r.PHASE, phase.to(tl.int64))


@triton.jit
def chosen(
    plan,
    numbers,
    shares,
    partials,
    out,
    state,
    node,
    used,
    vocab,
    span,
    programs,
    BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr,
    CLASSES: tl.constexpr,
):
    """Draw the extra token after `node` from the rest there, and write the row's result."""
    u = r.uniform(plan, used)
    sums = all_parts(partials, programs, SUM, PROGRAMS)
    total = tl.sum(sums, 0)
    bound = u * total
    program = tl.arange(0, PROGRAMS)
    # A scan by parts need not rise at every one, so that those without weight are excluded by name.
    above = (tl.cumsum(sums, 0) > bound) & (sums > 0.0)
    part = tl.min(tl.where(above, program, PROGRAMS), 0)
    last = tl.maximum(tl.max(tl.where(sums > 0.0, program, 0), 0), 0)
    part = tl.where(part < PROGRAMS, part, last)
    below = tl.sum(tl.where(program < part, sums, 0.0), 0)
    extra = tl.full((), -1, tl.int32)
    last = tl.full((), -1, tl.int32)
    for start in range(part * span, tl.minimum(part * span + span, vocab), BLOCK):
        token = start + tl.arange(0, BLOCK)
        inside = (token < part * span + span) & (token < vocab)
        left = tl.full([BLOCK], 0.0, tl.float64)
        if is_ordered(plan, node, CLASSES):
            if CLASSES:
                left, _, _ = ordered_left(plan, numbers, shares, node, token, inside)
        else:
            left, _, _ = drawn_left(plan, numbers, node, 0, token, inside)
        left = tl.where(inside, left, 0.0)
        here = tl.sum(left, 0)
        if (extra < 0) & (below + here > bound):
            first = tl.min(
                tl.where((below + tl.cumsum(left, 0) > bound) & (left > 0.0), token, 2147483647), 0
            )
            extra = tl.where(first < 2147483647, first, -1)
        last = tl.maximum(last, tl.max(tl.where(left > 0.0, token, -1), 0))
        below += here
    # The bound may have been rounded up to the total.
    extra = tl.where(extra < 0, last, extra)

    length = tl.full((), 1, tl.int32)
    above_it = node
    while above_it > 0:
        above_it = r.entry(plan, above_it, r.PARENT)
        length += 1
    above_it = node
    place = length
    while place > 0:
        place -= 1
        tl.store(out + 5 + place, above_it.to(tl.int32))
        above_it = r.entry(plan, tl.maximum(above_it, 0), r.PARENT)
    sound = (total > 0.0) & (total < float("inf")) & (u >= 0.0)
    tl.store(out, (sound == 0).to(tl.int32))
    tl.store(out + 1, (used + 1).to(tl.int32))
    tl.store(out + 2, (r.entry(plan, node, r.FIRST_CHILD) == 0).to(tl.int32))
    tl.store(out + 3, extra)
    tl.store(out + 4, length)
    tl.store(state + r.PHASE, DONE)


@triton.jit(do_not_specialize=["lines", "vocab", "leaf_first"])
def start(
    plan, numbers, shares, tally, out, lines, vocab, leaf_first, BLOCK: tl.constexpr, CLASSES: tl.constexpr
):
    """Look at the law of one node's children; the last program of a row goes on until its first pass.

    See `dispatch.walk` for the arguments.
    """
    row = tl.program_id(0).to(tl.int64)
    node = tl.program_id(1).to(tl.int64)
    plan += row * (lines + 2) * r.LINE
    numbers += row * lines * r.NUMBERS
    shares += row * lines * BUCKETS
    out += row * (5 + lines)
    state = plan + lines.to(tl.int64) * r.LINE
    first = r.entry(plan, node, r.FIRST_CHILD)
    low = tl.full([BLOCK], 0.0, tl.float64)
    tops = tl.full([BLOCK], 0.0, tl.float64)
    top_tokens = tl.full([BLOCK], -1, tl.int32)
    rests = tl.full([BLOCK], 0.0, tl.float64)
    drawn = (first > 0) & (r.entry(plan, first, r.KIND) != r.FIXED)
    if drawn:
        for begin in range(0, vocab, BLOCK):
            token = begin + tl.arange(0, BLOCK)
            mass = r.weights(r.entry(plan, first, r.LAW), token, token < vocab)
            low = tl.minimum(low, mass)
            rests += tl.where(mass > tops, tops, mass)
            top_tokens = tl.where(mass > tops, token, top_tokens)
            tops = tl.maximum(mass, tops)
    top, top_token, others = likeliest(tops, top_tokens)
    rest = tl.sum(rests, 0) + others
    total = rest + top
    sound = (tl.abs(total - 1.0) <= 1e-3) & (tl.min(low, 0) >= 0.0)
    r.keep(numbers, node, r.SOUND, tl.where(sound | (drawn == 0), 1.0, 0.0))
    ordered = is_ordered(plan, node, CLASSES)
    r.keep(numbers, node, r.TOTAL, tl.where(ordered, total, 1.0))
    r.keep(numbers, node, r.TOP, top_token.to(tl.float64))
    r.keep(numbers, node, r.REST, rest)
    if node == 0:
        # What is not finished is wrong.
        tl.store(out, 1)
        if CLASSES:
            for column in range(0, 4):
                place = row * 4 * BUCKETS + column * BUCKETS + tl.arange(0, BUCKETS)
                tl.store(tally + place, tl.full([BUCKETS], 0, tl.int64))
    tl.debug_barrier()
    if tl.atomic_add(state + r.ARRIVED, 1) == tl.num_programs(1) - 1:
        tl.store(state + r.ARRIVED, 0)
        root = tl.full((), 0, tl.int64)
        child, whole = visit(plan, numbers, root, 1.0)
        nothing = tl.full((), 0.0, tl.float64)
        tried = tl.full((), 0, tl.int32)
        advance(
            plan,
            numbers,
            shares,
            state,
            root,
            child,
            root,
            tried,
            nothing,
            nothing,
            whole,
            leaf_first,
            CLASSES,
        )


@triton.jit(do_not_specialize=["lines", "vocab", "span", "leaf_first"])
def step(
    plan,
    numbers,
    shares,
    tally,
    partials,
    out,
    lines,
    vocab,
    span,
    leaf_first,
    BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr,
    CLASSES: tl.constexpr,
):
    """One pass over the vocabulary, `span` tokens a program; the last one of a row goes on until the next.

    A row's only program makes all passes. See `dispatch.walk` for the arguments.
    """
    row = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    programs = tl.num_programs(1)
    plan += row * (lines + 2) * r.LINE
    numbers += row * lines * r.NUMBERS
    shares += row * lines * BUCKETS
    tally += row * 4 * BUCKETS
    partials += row * PROGRAMS * PARTS
    out += row * (5 + lines)
    state = plan + lines.to(tl.int64) * r.LINE
    steps = tl.where(programs == 1, 2147483647, 1)
    phase = tl.load(state + r.PHASE).to(tl.int32)
    while (phase != DONE) & (steps > 0):
        steps -= 1
        node = tl.load(state + r.NODE)
        child = tl.load(state + r.CHILD)
        used = tl.load(state + r.USED)
        end = tl.minimum(program * span + span, vocab)
        parts = partials + program * PARTS
        measure(plan, numbers, shares, tally, parts, phase, node, child, program * span, end, BLOCK, CLASSES)
        tl.debug_barrier()
        if tl.atomic_add(state + r.ARRIVED, 1) == programs - 1:
            tl.store(state + r.ARRIVED, 0)
            if phase == CHOOSE:
                chosen(
                    plan,
                    numbers,
                    shares,
                    partials,
                    out,
                    state,
                    node,
                    used,
                    vocab,
                    span,
                    programs,
                    BLOCK,
                    PROGRAMS,
                    CLASSES,
                )
            else:
                tried = tl.full((), 0, tl.int32)
                target_mass = tl.full((), 0.0, tl.float64)
                draft_mass = tl.full((), 0.0, tl.float64)
                sound = phase != DONE
                if phase == REJECT:
                    failed(plan, numbers, partials, node, child, programs, CLASSES, PROGRAMS)
                    child = r.entry(plan, child, r.NEXT_SIBLING)
                elif CLASSES:
                    odds_rest = tl.sum(all_parts(partials, programs, ODDS_SUM, PROGRAMS), 0)
                    child, target_mass, draft_mass, sound = classed(
                        plan, numbers, shares, tally, odds_rest, node, used
                    )
                    used += 2
                    tried = tl.full((), 1, tl.int32)
                advance(
                    plan,
                    numbers,
                    shares,
                    state,
                    node,
                    child,
                    used,
                    tried,
                    target_mass,
                    draft_mass,
                    sound,
                    leaf_first,
                    CLASSES,
                )
        tl.debug_barrier()
        phase = tl.load(state + r.PHASE).to(tl.int32)
