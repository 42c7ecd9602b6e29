"""Recursive rejection down a tree in Triton; README.md has the derivation."""

import triton
import triton.language as tl

FIXED = tl.constexpr(0)
FULL = tl.constexpr(1)
LINE = tl.constexpr(8)
DUST = tl.constexpr(5.551115123125783e-17)  # 2^-54


@triton.jit
def distribution(address):
    """A pointer to a distribution; rows of odd vocabularies are aligned to nothing."""
    return address.to(tl.pointer_type(tl.float32))


@triton.jit
def is_distribution(law, vocab, BLOCK: tl.constexpr):
    """Returns whether `law` is a distribution."""
    lows = tl.full([BLOCK], 0.0, tl.float32)
    sums = tl.full([BLOCK], 0.0, tl.float64)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        mass = tl.load(law + token, mask=token < vocab, other=0.0)
        lows = tl.minimum(lows, mass)
        sums += mass.to(tl.float64)
    return (tl.abs(tl.sum(sums, 0) - 1.0) <= 1e-3) & (tl.min(lows, 0) >= 0.0)


@triton.jit
def reject(left, law, rest, after, token, factor, fixed, reads, copies, vocab, BLOCK: tl.constexpr):
    """Write `left` less `factor` times the law of a child into `after`, and return the sum of the rest.

    Where `fixed`, the law only has the child's token; else it is `law`. `reads` entries of `law` are read,
    and `copies` entries are written to `rest` without the child. The second number returned is the sum of the
    entries that were read, without the child's. Each count is 0 or all.
    """
    sums = tl.full([BLOCK], 0.0, tl.float64)
    others = tl.full([BLOCK], 0.0, tl.float64)
    for start in range(0, vocab, BLOCK):
        other = start + tl.arange(0, BLOCK)
        mass = tl.load(law + other, mask=other < reads, other=0.0).to(tl.float64)
        alone = tl.where(other == token, 1.0, 0.0).to(tl.float64)
        residual = tl.load(left + other, mask=other < vocab, other=0.0).to(tl.float64)
        residual -= factor * tl.where(fixed != 0, alone, mass)
        residual = tl.maximum(residual, 0.0).to(tl.float32)
        tl.store(after + other, residual, mask=other < vocab)
        sums += residual.to(tl.float64)
        mass = tl.where(other == token, 0.0, mass)
        tl.store(rest + other, mass.to(tl.float32), mask=other < copies)
        others += mass
    return tl.sum(sums, 0), tl.sum(others, 0)


@triton.jit
def choose(weights, u, vocab, BLOCK: tl.constexpr):
    """The first token whose cumulative weight exceeds `u` times the total, and the total."""
    total = tl.full((), 0.0, tl.float64)
    last = tl.full((), -1, tl.int32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        mass = tl.load(weights + token, mask=token < vocab, other=0.0)
        total += tl.sum(mass.to(tl.float64), 0)
        last = tl.maximum(last, tl.max(tl.where(mass > 0, token, -1), 0))
    bound = u * total
    below = tl.full((), 0.0, tl.float64)
    chosen = tl.full((), -1, tl.int32)
    for start in range(0, vocab, BLOCK):
        token = start + tl.arange(0, BLOCK)
        mass = tl.load(weights + token, mask=token < vocab, other=0.0).to(tl.float64)
        here = tl.sum(mass, 0)
        if (chosen < 0) & (below + here > bound):
            heights = below + tl.cumsum(mass, 0)
            # A scan by parts need not rise at every token, so that one without weight is excluded by name.
            first = tl.min(tl.where((heights > bound) & (mass > 0), token, vocab), 0)
            chosen = tl.where(first < vocab, first, -1)
        below += here
    # `bound` may have been rounded up to the total.
    return tl.where(chosen < 0, last, chosen), total


@triton.jit(do_not_specialize=["nodes", "vocab"])
def walk(plan, scratch, out, nodes, vocab, BLOCK: tl.constexpr):
    """Judge one row; see `dispatch.walk` for `plan` and `out`. `scratch` is fp32 `[rows, 3, vocab]`."""
    row = tl.program_id(0).to(tl.int64)
    plan += row * nodes * LINE
    out += row * (nodes + 5)
    scratch += row * 3 * vocab
    rest = scratch + 2 * vocab.to(tl.int64)

    tl.store(out + 5, 0)
    length = tl.full((), 1, tl.int32)
    used = tl.full((), 0, tl.int32)
    wrong = tl.full((), 0, tl.int32)
    fresh = tl.full((), 1, tl.int32)  # no child of the node has been tried
    half = tl.full((), 0, tl.int32)  # of the scratch, to be written next
    left = tl.load(plan + 5)
    child = tl.load(plan + 1)
    scale = tl.full((), 1.0, tl.float64)
    total = tl.full((), 1.0, tl.float64)
    while child > 0:
        line = plan + child * LINE
        token = tl.load(line)
        draw_kind = tl.load(line + 3)
        address = tl.load(line + 4)
        fixed = (draw_kind == FIXED).to(tl.int32)
        removes = (draw_kind != FULL) & (address != 0)
        law = distribution(tl.where(removes & (fresh == 0), rest.to(tl.int64), address))
        if (fresh != 0) & (fixed == 0):
            wrong = tl.where(is_distribution(law, vocab, BLOCK), wrong, 1)

        target_mass = tl.load(distribution(left) + token).to(tl.float64) / scale
        draft_mass = tl.load(law + token, mask=fixed == 0, other=1.0).to(tl.float64)
        # A total of 0 leaves nothing to draw, and all of `rest` is 0.
        share = tl.where((fixed != 0) | (total <= 0.0), 1.0, total)
        draft_mass = draft_mass / share
        chance = tl.where(draft_mass > 0.0, target_mass / tl.where(draft_mass > 0.0, draft_mass, 1.0), 1.0)
        tossed = (target_mass > 0.0) & (chance >= DUST)
        u = tl.load(plan + used * LINE + 6, mask=tossed, other=0).to(tl.float64, bitcast=True)
        # NaN marks the end of the tape.
        if ((target_mass >= 0.0) & (target_mass < float("inf")) & (u >= 0.0)) == 0:
            wrong = tl.full((), 1, tl.int32)
        used += tossed.to(tl.int32)
        if tossed & (u < chance):
            tl.store(out + 5 + length, child.to(tl.int32))
            length += 1
            fresh = tl.full((), 1, tl.int32)
            left = tl.load(line + 5)
            scale = tl.full((), 1.0, tl.float64)
            total = tl.full((), 1.0, tl.float64)
            child = tl.load(line + 1)
        else:
            # A thread may still be reading what the child before has left.
            tl.debug_barrier()
            after = scratch + half * vocab.to(tl.int64)
            reads = tl.where(removes | (fixed == 0), vocab, 0)
            copies = tl.where(removes & (fresh != 0), vocab, 0)
            sums, others = reject(
                distribution(left), law, rest, after, token, scale / share, fixed, reads, copies, vocab, BLOCK
            )
            tl.debug_barrier()
            tl.store(rest + token, 0.0, mask=removes & (fresh == 0))
            tl.debug_barrier()
            # In floating point nothing may be left although the child failed; all then stays as it was.
            if sums > 0.0:
                left = after.to(tl.int64)
                scale = sums
                half = 1 - half
            total = tl.where(removes, others, total)
            fresh = tl.full((), 0, tl.int32)
            child = tl.load(line + 2)
        child = tl.where(wrong != 0, 0, child)

    u = tl.load(plan + used * LINE + 6).to(tl.float64, bitcast=True)
    extra, weight = choose(distribution(left), u, vocab, BLOCK)
    if ((weight > 0.0) & (weight < float("inf")) & (u >= 0.0)) == 0:
        wrong = tl.full((), 1, tl.int32)
    tl.store(out, wrong)
    tl.store(out + 1, used + 1)
    tl.store(out + 2, fresh)
    tl.store(out + 3, extra)
    tl.store(out + 4, length)
