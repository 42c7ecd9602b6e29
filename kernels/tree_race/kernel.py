"""Allowances of a tree from its root down in Triton, before any coin is tossed; README.md derives them."""

import triton
import triton.language as tl

from draftwood.kernels.race_flows.kernel import LATEST, SETS, flows_of, odds_of
from draftwood.kernels.race_walk.kernel import (
    ALL,
    ALLOWANCE,
    INDEX,
    INNER,
    LAW,
    NUMBERS,
    ONE,
    PLACE,
    SOME,
    SOUND,
    SPARE_MASS,
    TRIED,
    choose,
    keep,
    leave,
    number,
    walk,
)
from draftwood.kernels.tree_plan import kernel as r

__all__ = ["allow", "choose", "leave", "light", "look", "spare", "walk", "weigh"]

DUST = tl.constexpr(5.551115123125783e-17)  # 2^-54


@triton.jit
def mass_of(address, token):
    """The weight of one token."""
    one = tl.full([1], 0, tl.int64) + token
    return tl.sum(r.weights(address, one, one >= 0), 0)


@triton.jit(do_not_specialize=["lines", "vocab", "span"])
def look(plan, inner, laws, drafts, targets, lines, vocab, span, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """Sum and least weight of the draft's law at a node; its law and target are copied if it has several."""
    index = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    plan += tl.load(inner + index * INNER) * lines * r.LINE
    node = tl.load(inner + index * INNER + 1)
    slot = tl.load(inner + index * INNER + 2)
    law = r.entry(plan, r.entry(plan, node, r.FIRST_CHILD), r.LAW)
    target = r.entry(plan, node, r.TARGET)
    sums = tl.full([BLOCK], 0.0, tl.float64)
    least = tl.full([BLOCK], 0.0, tl.float64)
    end = tl.minimum(program * span + span, vocab)
    for start in range(program * span, end, BLOCK):
        token = start + tl.arange(0, BLOCK)
        inside = token < end
        mass = r.weights(law, token, inside)
        sums += mass
        least = tl.minimum(least, mass)
        if slot >= 0:
            tl.store(drafts + slot * vocab + token, mass.to(tl.float32), mask=inside)
            wanted = r.weights(target, token, inside)
            tl.store(targets + slot * vocab + token, wanted.to(tl.float32), mask=inside)
    part = laws + (index * PROGRAMS + program) * 2
    tl.store(part, tl.sum(sums, 0))
    tl.store(part + 1, tl.min(least, 0))


@triton.jit(do_not_specialize=["vocab", "span"])
def light(others, factors, counts, sums, vocab, span, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """Sums of the powers of the odds of tokens that are not offered, and the same with what they mark."""
    slot = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    factor = tl.load(factors + slot)
    count = tl.load(counts + slot).to(tl.int32)
    pair = count == 2
    place = tl.arange(0, SETS)
    powers = tl.full([SETS], 0.0, tl.float64)
    slopes = tl.full([SETS], 0.0, tl.float64)
    end = tl.minimum(program * span + span, vocab)
    for start in range(program * span, end, BLOCK):
        token = start + tl.arange(0, BLOCK)
        mass = tl.load(others + slot * vocab + token, mask=token < end, other=0.0).to(tl.float64)
        weight = mass * factor
        odds = odds_of(weight, pair)
        slope = tl.where(pair, 1.0 / tl.maximum(1.0 - weight, 1e-300), -weight)
        slopes += tl.where(place == 0, tl.where(pair, 0.0, tl.sum(weight, 0)), 0.0)
        power = tl.full([BLOCK], 1.0, tl.float64)
        for j in range(1, count + 1):
            power *= odds
            powers += tl.where(place == j, tl.sum(power, 0), 0.0)
            slopes += tl.where(place == j, tl.sum(power * slope, 0), 0.0)
    part = sums + (slot * PROGRAMS + program) * 2 * SETS
    tl.store(part + place, powers)
    tl.store(part + SETS + place, slopes)


@triton.jit
def light_sum(sums, programs, which, PROGRAMS: tl.constexpr):
    """One of the sums of the light tokens, of all programs."""
    part = tl.arange(0, PROGRAMS)
    return tl.sum(tl.load(sums + part * 2 * SETS + which, mask=part < programs, other=0.0), 0)


@triton.jit(do_not_specialize=["size", "vocab", "programs"])
def weigh(
    drafts,
    targets,
    tokens,
    factors,
    counts,
    beside_top,
    sums,
    columns,
    keys,
    norms,
    size,
    vocab,
    programs,
    BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """The columns of the offered tokens, and the key by which they are ranked, the highest first."""
    slot = tl.program_id(0).to(tl.int64)
    drafts += slot * vocab
    targets += slot * vocab
    tokens += slot * size
    sums += slot * PROGRAMS * 2 * SETS
    columns += slot * 4 * size
    factor = tl.load(factors + slot)
    count = tl.load(counts + slot).to(tl.int32)
    pair = count == 2
    tried_sum = light_sum(sums, programs, SETS + 1, PROGRAMS)
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        token = tl.load(tokens + place)
        inside = token >= 0
        mass = tl.load(drafts + token, mask=inside, other=0.0).to(tl.float64)
        weight = mass * factor
        odds = odds_of(weight, pair)
        # What a nearly certain token leaves is lost in a difference.
        left = tl.where(weight > 0.5, tl.load(beside_top + slot) * factor, 1.0 - weight)
        marks = tl.where(pair, 1.0 / tl.maximum(left, 1e-300), 0.0)
        tl.store(columns + place, odds)
        # A token that surely came is no mark: its rate would be immense compared with the others.
        tl.store(columns + size + place, tl.where(pair | (weight >= LATEST), 0.0, weight))
        tl.store(columns + 2 * size + place, marks)
        tl.store(columns + 3 * size + place, tl.load(targets + token, mask=inside, other=0.0).to(tl.float64))
        tried_sum += tl.sum(odds * marks, 0)
    tl.debug_barrier()
    light_odds = light_sum(sums, programs, 1, PROGRAMS)
    wanted = count.to(tl.float64)
    norm = tl.full((), 1.0, tl.float64)
    following = norm
    step = tl.where(pair, 6, 0)
    while step < 6:
        # As if tokens were in the set by themselves, at odds by which as many are expected.
        norm = following
        expected = norm * light_odds
        slope = expected
        for start in range(0, size, BLOCK):
            odds = tl.load(columns + start + tl.arange(0, BLOCK)) * norm
            share = odds / (1.0 + odds)
            expected += tl.sum(share, 0)
            slope += tl.sum(share * (1.0 - share), 0)
        change = tl.minimum(tl.maximum((wanted - expected) / tl.maximum(slope, 1e-3), -3.0), 3.0)
        following = norm * tl.exp(change)
        step = tl.where(tl.abs(expected - wanted) <= 0.02 * wanted, 6, step + 1)
    tl.debug_barrier()
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        odds = tl.load(columns + place)
        tried = odds * tl.load(columns + 2 * size + place)
        scaled = odds * norm
        share = tl.where(pair, odds * (1.0 + tried_sum - tried), scaled / (1.0 + scaled))
        target = tl.load(columns + 3 * size + place)
        key = target / tl.where(share > 0.0, share, 1.0)
        nothing = tl.where(target > 0.0, float("inf"), -1.0)
        tl.store(keys + slot * size + place, tl.where(share > 0.0, key, nothing))
        tl.store(columns + place, scaled)
    tl.store(norms + slot, norm)


@triton.jit
def among_offered(tokens, values, places, token, size, BLOCK: tl.constexpr):
    """Allowance and place of `token`; 0 and -1 where it is not offered."""
    allowance = tl.full((), 0.0, tl.float64)
    its_place = tl.full((), -1, tl.int32)
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        here = tl.load(tokens + place) == token
        allowance += tl.sum(tl.where(here, tl.load(values + place), 0.0), 0)
        its_place = tl.maximum(its_place, tl.max(tl.where(here, tl.load(places + place), -1), 0))
    return allowance, its_place


@triton.jit(do_not_specialize=["first", "lines", "size", "programs", "light_programs", "height"])
def allow(
    plan,
    inner,
    laws,
    numbers,
    counts,
    rests,
    tokens,
    columns,
    orders,
    again,
    scratch,
    flows,
    places,
    sums,
    set_sums,
    norms,
    first,
    lines,
    size,
    programs,
    light_programs,
    height,
    BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """The allowances of the children of one node of a level; see `stages.py` for the arguments."""
    index = first + tl.program_id(0).to(tl.int64)
    row = tl.load(inner + index * INNER)
    plan += row * lines * r.LINE
    numbers += row * lines * NUMBERS
    node = tl.load(inner + index * INNER + 1)
    slot = tl.load(inner + index * INNER + 2)
    allowance = tl.where(node == 0, 1.0, number(numbers, node, ALLOWANCE))
    child = r.entry(plan, node, r.FIRST_CHILD)
    target = r.entry(plan, node, r.TARGET)
    law = r.entry(plan, child, r.LAW)
    fixed = r.entry(plan, child, r.KIND) == r.FIXED
    part = tl.arange(0, PROGRAMS)
    parts = laws + (index * PROGRAMS + part) * 2
    law_sum = tl.sum(tl.load(parts, mask=part < programs, other=0.0), 0)
    least = tl.min(tl.load(parts + 1, mask=part < programs, other=0.0), 0)
    sound = fixed | ((tl.abs(law_sum - 1.0) <= 1e-3) & (least >= 0.0))
    spare = tl.full((), 0.0, tl.float64)
    kind = tl.where(fixed, ALL, ONE)
    if slot >= 0:
        kind = tl.where(tl.load(rests + slot) > 0.0, SOME, ALL)
        if kind == SOME:
            flow = flows_of(
                columns + slot * 4 * size,
                orders + slot * size,
                again + slot * size,
                scratch + slot * height * size,
                flows + slot * 3 * size,
                places + slot * size,
                sums + slot * PROGRAMS * 2 * SETS,
                set_sums + slot * 2 * SETS,
                light_programs,
                allowance,
                tl.load(norms + slot),
                tl.load(counts + slot).to(tl.int32),
                size,
                BLOCK,
                PROGRAMS,
            )
            spare = tl.maximum(allowance - flow, 0.0)
            # Of what left the range of its numbers there is no flow.
            sound = sound & (flow >= 0.0) & (flow < 2.0)
    taken = tl.full((), 0.0, tl.float64)
    waiting = tl.load(inner + index * INNER + 3).to(tl.int32)
    last = child
    last_place = tl.full((), -1, tl.int32)
    while child > 0:
        token = r.entry(plan, child, r.TOKEN)
        wanted = allowance * mass_of(target, token)
        offered = mass_of(law, token)
        sound = sound & (wanted >= 0.0) & (wanted < float("inf"))
        place = tl.full((), 0, tl.int32)
        chance = wanted
        if kind == SOME:
            sound = sound & (offered > 0.0)
            chance, place = among_offered(
                tokens + slot * size, flows + (slot * 3 + 1) * size, places + slot * size, token, size, BLOCK
            )
            waiting -= (place >= 0).to(tl.int32)
            last = tl.where(place > last_place, child, last)
            last_place = tl.maximum(place, last_place)
        elif kind == ALL:
            # In the order of tokens, each takes what it wants.
            sound = sound & (fixed | (offered > 0.0))
            other = r.entry(plan, node, r.FIRST_CHILD)
            earlier = tl.full((), 0.0, tl.float64)
            while other > 0:
                if r.entry(plan, other, r.TOKEN) < token:
                    earlier += allowance * mass_of(target, r.entry(plan, other, r.TOKEN))
                    place += 1
                other = r.entry(plan, other, r.NEXT_SIBLING)
            left = 1.0 - earlier
            chance = tl.where(left > 0.0, wanted / tl.where(left > 0.0, left, 1.0), 0.0)
            taken += wanted
        else:
            chance = wanted / tl.where(offered > 0.0, offered, 1.0)
            chance = tl.where(offered > 0.0, chance, 1.0)
        chance = tl.where(wanted > 0.0, tl.minimum(chance, 1.0), 0.0)
        keep(numbers, child, ALLOWANCE, tl.where(chance < DUST, 0.0, chance))
        keep(numbers, child, PLACE, place.to(tl.float64))
        child = r.entry(plan, child, r.NEXT_SIBLING)
    if (kind == SOME) & (waiting == 0):
        # A token that is not offered would come after the last one.
        token = r.entry(plan, last, r.TOKEN)
        chance, _ = among_offered(
            tokens + slot * size, flows + (slot * 3 + 2) * size, places + slot * size, token, size, BLOCK
        )
        chance = tl.where(mass_of(target, token) > 0.0, tl.minimum(chance, 1.0), 0.0)
        tl.debug_barrier()
        keep(numbers, last, ALLOWANCE, tl.where(chance < DUST, 0.0, chance))
    spare = tl.where(kind == ALL, tl.maximum(allowance - taken, 0.0), spare)
    # All threads have read the node's own allowance, which its parent has written.
    tl.debug_barrier()
    keep(numbers, node, ALLOWANCE, allowance)
    keep(numbers, node, SPARE_MASS, spare)
    keep(numbers, node, SOUND, tl.where(sound, 1.0, 0.0).to(tl.float64))
    keep(numbers, node, LAW, kind.to(tl.float64))
    keep(numbers, node, TRIED, -2.0)
    keep(numbers, node, INDEX, index.to(tl.float64))


@triton.jit(do_not_specialize=["lines", "vocab", "span"])
def spare(plan, inner, numbers, spares, lines, vocab, span, BLOCK: tl.constexpr, PROGRAMS: tl.constexpr):
    """Computes what an only child, drawn from the draft's law, leaves of its target: max(a T - D, 0)."""
    index = tl.program_id(0).to(tl.int64)
    program = tl.program_id(1)
    row = tl.load(inner + index * INNER)
    plan += row * lines * r.LINE
    numbers += row * lines * NUMBERS
    node = tl.load(inner + index * INNER + 1)
    left = tl.full([BLOCK], 0.0, tl.float64)
    if number(numbers, node, LAW) == ONE:
        law = r.entry(plan, r.entry(plan, node, r.FIRST_CHILD), r.LAW)
        target = r.entry(plan, node, r.TARGET)
        allowance = number(numbers, node, ALLOWANCE)
        end = tl.minimum(program * span + span, vocab)
        for start in range(program * span, end, BLOCK):
            token = start + tl.arange(0, BLOCK)
            inside = token < end
            wanted = allowance * r.weights(target, token, inside)
            left += tl.maximum(wanted - r.weights(law, token, inside), 0.0)
    tl.store(spares + index * PROGRAMS + program, tl.sum(left, 0))
