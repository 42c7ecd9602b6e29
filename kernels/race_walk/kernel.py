"""A row's walk over settled allowances, and its extra token, in Triton; tree_race/README.md derives them."""

import triton
import triton.language as tl

from draftwood.kernels.tree_plan import kernel as r

# Columns of a node with children: its row and number, its index among nodes with several children (-1 for
# none), and its number of children.
INNER = tl.constexpr(4)
# Numbers of a node.
NUMBERS = tl.constexpr(8)
ALLOWANCE = tl.constexpr(0)
SPARE_MASS = tl.constexpr(1)  # what its children leave of its target
SOUND = tl.constexpr(2)
LAW = tl.constexpr(3)
PLACE = tl.constexpr(4)  # of a child among those that are tried
TRIED = tl.constexpr(5)  # the place of the child that was tried last
INDEX = tl.constexpr(6)  # among the nodes with children
# How children take from the target.
ONE = tl.constexpr(0)  # what the draft offers of it
ALL = tl.constexpr(1)  # all of their tokens
SOME = tl.constexpr(2)  # the flows of what is offered
LEAF = tl.constexpr(3)  # there are none


@triton.jit
def number(numbers, node, field):
    return tl.load(numbers + node * NUMBERS + field)


@triton.jit
def keep(numbers, node, field, value):
    tl.store(numbers + node * NUMBERS + field, value)


@triton.jit(do_not_specialize=["lines", "programs"])
def walk(plan, numbers, spares, out, lines, programs, PROGRAMS: tl.constexpr):
    """Toss the coins of a row from the leaves up; its path, and where the extra token comes from."""
    row = tl.program_id(0).to(tl.int64)
    plan += row * lines * r.LINE
    numbers += row * lines * NUMBERS
    out += row * (5 + lines)
    node = tl.full((), 0, tl.int64)
    end = tl.full((), -1, tl.int64)
    used = tl.full((), 0, tl.int64)
    alone = r.entry(plan, node, r.FIRST_CHILD) == 0
    sound = tl.full((), 1, tl.int32) == 1
    while sound & (end < 0):
        # What one thread has written is read by all.
        tl.debug_barrier()
        child = r.entry(plan, node, r.FIRST_CHILD)
        tried = tl.full((), 0.0, tl.float64)
        if alone == 0:
            sound = sound & (number(numbers, node, SOUND) > 0.0)
            tried = number(numbers, node, TRIED)
        following = tl.full((), 0, tl.int64)
        place = tl.full((), float("inf"), tl.float64)
        while child > 0:
            its_place = number(numbers, child, PLACE)
            sooner = (its_place > tried) & (its_place < place) & (number(numbers, child, ALLOWANCE) > 0.0)
            following = tl.where(sooner, child, following)
            place = tl.where(sooner, its_place, place)
            child = r.entry(plan, child, r.NEXT_SIBLING)
        tl.debug_barrier()
        if following > 0:
            keep(numbers, node, TRIED, place)
            if r.entry(plan, following, r.FIRST_CHILD) > 0:
                node = following
            else:
                u = r.uniform(plan, used)
                # NaN marks the end of the tape.
                sound = sound & (u >= 0.0)
                used += 1
                end = tl.where(u < number(numbers, following, ALLOWANCE), following, end)
        else:
            chance = tl.full((), 1.0, tl.float64)
            if node > 0:
                left = number(numbers, node, SPARE_MASS)
                if number(numbers, node, LAW) == ONE:
                    part = tl.arange(0, PROGRAMS)
                    parts = spares + number(numbers, node, INDEX).to(tl.int64) * PROGRAMS + part
                    left = tl.sum(tl.load(parts, mask=part < programs, other=0.0), 0)
                deficit = 1.0 - number(numbers, node, ALLOWANCE)
                sound = sound & (left >= 0.0)
                # Where the allowance is 1 the node is accepted for sure, whatever is left.
                chance = tl.where(deficit > 0.0, left / tl.where(deficit > 0.0, left + deficit, 1.0), 1.0)
            u = r.uniform(plan, used)
            sound = sound & (u >= 0.0)
            used += 1
            end = tl.where(u < chance, node, end)
            node = tl.where(u < chance, node, r.entry(plan, node, r.PARENT))
    length = tl.full((), 1, tl.int32)
    above = tl.maximum(end, 0)
    while above > 0:
        above = r.entry(plan, above, r.PARENT)
        length += 1
    above = tl.maximum(end, 0)
    place = length
    while place > 0:
        place -= 1
        tl.store(out + 5 + place, above.to(tl.int32))
        above = tl.maximum(r.entry(plan, above, r.PARENT), 0)
    tl.store(out, (sound == 0).to(tl.int32))
    tl.store(out + 1, used.to(tl.int32))
    tl.store(out + 2, (r.entry(plan, tl.maximum(end, 0), r.FIRST_CHILD) == 0).to(tl.int32))
    tl.store(out + 3, -1)
    tl.store(out + 4, length)


@triton.jit(do_not_specialize=["lines", "vocab", "span", "size"])
def leave(
    plan,
    inner,
    numbers,
    tokens,
    flows,
    out,
    left,
    heights,
    lines,
    vocab,
    span,
    size,
    BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Computes the target's rest at the end of a row's path, and its sum over this program's tokens."""
    row = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    plan += row * lines * r.LINE
    numbers += row * lines * NUMBERS
    out += row * (5 + lines)
    left += row * vocab
    node = tl.load(out + 4 + tl.load(out + 4)).to(tl.int64)
    kind = tl.full((), LEAF, tl.int32)
    allowance = tl.full((), 1.0, tl.float64)
    index = tl.full((), 0, tl.int64)
    if tl.load(out + 2) == 0:
        kind = number(numbers, node, LAW).to(tl.int32)
        allowance = number(numbers, node, ALLOWANCE)
        index = number(numbers, node, INDEX).to(tl.int64)
    if tl.load(out) != 0:
        index = tl.full((), 0, tl.int64)
        kind = tl.full((), LEAF, tl.int32)
    target = r.entry(plan, node, r.TARGET)
    child = r.entry(plan, node, r.FIRST_CHILD)
    law = r.entry(plan, child, r.LAW)
    begin = program * span
    end = tl.minimum(begin + span, vocab)
    for start in range(begin, end, BLOCK):
        token = start + tl.arange(0, BLOCK)
        inside = token < end
        wanted = allowance * r.weights(target, token, inside)
        taken = r.weights(law, token, inside & (kind == ONE))
        tl.store(left + token, tl.maximum(wanted - taken, 0.0), mask=inside)
    tl.debug_barrier()
    if kind == SOME:
        slot = tl.load(inner + index * INNER + 2)
        for start in range(0, size, BLOCK):
            place = start + tl.arange(0, BLOCK)
            token = tl.load(tokens + slot * size + place)
            inside = (token >= begin) & (token < end)
            wanted = allowance * r.weights(target, token, inside)
            flow = tl.load(flows + slot * 3 * size + place)
            tl.store(left + token, tl.maximum(wanted - flow, 0.0), mask=inside)
    if kind == ALL:
        while child > 0:
            token = r.entry(plan, child, r.TOKEN)
            tl.store(left + token, 0.0, mask=(token >= begin) & (token < end))
            child = r.entry(plan, child, r.NEXT_SIBLING)
    tl.debug_barrier()
    height = tl.full((), 0.0, tl.float64)
    for start in range(begin, end, BLOCK):
        token = start + tl.arange(0, BLOCK)
        height += tl.sum(tl.load(left + token, mask=token < end, other=0.0), 0)
    tl.store(heights + row * PROGRAMS + program, height)


@triton.jit(do_not_specialize=["lines", "vocab", "span", "programs"])
def choose(
    plan, out, left, heights, lines, vocab, span, programs, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr
):
    """Draw a row's extra token from the rest: the first whose cumulative weight exceeds u times all."""
    row = tl.program_id(0).to(tl.int64)
    plan += row * lines * r.LINE
    out += row * (5 + lines)
    left += row * vocab
    used = tl.load(out + 1)
    u = r.uniform(plan, used)
    program = tl.arange(0, PROGRAMS)
    sums = tl.load(heights + row * PROGRAMS + program, mask=program < programs, other=0.0)
    total = tl.sum(sums, 0)
    bound = u * total
    # A scan by parts need not rise at every one, so that those without weight are excluded by name.
    above = (tl.cumsum(sums, 0) > bound) & (sums > 0.0)
    part = tl.min(tl.where(above, program, PROGRAMS), 0)
    part = tl.where(part < PROGRAMS, part, tl.max(tl.where(sums > 0.0, program, 0), 0))
    below = tl.sum(tl.where(program < part, sums, 0.0), 0)
    extra = tl.full((), -1, tl.int32)
    last = tl.full((), -1, tl.int32)
    end = tl.minimum(part * span + span, vocab)
    for start in range(part * span, end, BLOCK):
        token = start + tl.arange(0, BLOCK)
        mass = tl.load(left + token, mask=token < end, other=0.0)
        over = (below + tl.cumsum(mass, 0) > bound) & (mass > 0.0)
        first = tl.min(tl.where(over, token, 2147483647), 0)
        extra = tl.where((extra < 0) & (first < 2147483647), first, extra)
        last = tl.maximum(last, tl.max(tl.where(mass > 0.0, token, -1), 0))
        below += tl.sum(mass, 0)
    sound = (tl.load(out) == 0) & (total > 0.0) & (total < float("inf")) & (u >= 0.0)
    tl.store(out, (sound == 0).to(tl.int32))
    tl.store(out + 1, used + 1)
    # The bound may have been rounded up to the total.
    tl.store(out + 3, tl.where(extra < 0, last, extra))
