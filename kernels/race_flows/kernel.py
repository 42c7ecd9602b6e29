"""Flows and allowances of a node's offered tokens by one program, in Triton; README.md has the derivation."""

import triton
import triton.language as tl

SETS = tl.constexpr(32)
"""More than the numbers of tokens in a set, which are 0 to 16."""

LATEST = tl.constexpr(36.0)
SPARE = tl.constexpr(2e-4)
NEAR = tl.constexpr(2e-3)
ROUNDING = tl.constexpr(1e-12)
STEPS = tl.constexpr(8)

# Columns of a node's tokens, as offered and in their order.
COLUMNS = tl.constexpr(4)
ODDS = tl.constexpr(0)
OUTSIDE = tl.constexpr(1)
INSIDE = tl.constexpr(2)
TARGET = tl.constexpr(3)
# Further lines in their order; after them two for every number of tokens in a set.
ARRIVING = tl.constexpr(4)
ALLOWANCES = tl.constexpr(5)
FLOWS = tl.constexpr(6)
BEST = tl.constexpr(7)
AT_BEST = tl.constexpr(8)
# The same of tokens before which all other siblings were tried.
LAST = tl.constexpr(9)
LAST_ALLOWANCES = tl.constexpr(10)
LAST_BEST = tl.constexpr(11)
LAST_AT_BEST = tl.constexpr(12)
TABLES = tl.constexpr(13)


@triton.jit
def at(numbers, place):
    """One of `numbers` `[SETS]`."""
    return tl.sum(tl.where(tl.arange(0, SETS) == place, numbers, 0.0), 0)


@triton.jit
def alone(number, place):
    """`[SETS]` with `number` at its place."""
    return tl.where(tl.arange(0, SETS) == place, number, 0.0)


@triton.jit
def before(terms, BLOCK: tl.constexpr):
    """Returns the sum of the terms before each place; it subtracts no sums, in which light terms are lost."""
    place = tl.arange(0, BLOCK)
    sums = tl.cumsum(terms, 0)
    return tl.where(place > 0, tl.gather(sums, tl.maximum(place - 1, 0), 0), 0.0)


@triton.jit
def odds_of(weight, pair):
    """e^w - 1, and w of a pair."""
    capped = tl.minimum(weight, LATEST)
    # Kahan's: what is lost in e^w is lost in its logarithm too.
    power = tl.exp(capped)
    rounded = (power - 1.0) * (capped / tl.where(power == 1.0, 1.0, tl.log(power)))
    return tl.where(pair, weight, tl.where(power == 1.0, capped, rounded))


@triton.jit
def at_most_one(wanted, arriving):
    """The allowance by which `wanted` of `arriving` is accepted, or all of it."""
    return tl.where(arriving > wanted, wanted / tl.where(arriving > wanted, arriving, 1.0), 1.0)


@triton.jit
def sets_behind(light, sums, programs, norm, count, PROGRAMS: tl.constexpr):
    """Sums over the sets of 0 to K tokens of the class at the end, and the same with marks, `[SETS]` each.

    By Newton's identities from `light`, the sums of powers by program; `sums` is scratch, `[2, SETS]`.
    """
    place = tl.arange(0, SETS)
    part = tl.arange(0, PROGRAMS)[:, None]
    there = part < programs
    address = light + part * 2 * SETS + place[None, :]
    powers = tl.sum(tl.load(address, mask=there, other=0.0), 0)
    slopes = tl.sum(tl.load(address + SETS, mask=there, other=0.0), 0)
    tl.store(sums + place, powers)
    tl.store(sums + SETS + place, slopes)
    tl.debug_barrier()
    products = tl.full([SETS], 0.0, tl.float64)
    marked = tl.full([SETS], 0.0, tl.float64)
    coming = tl.full([SETS], 0.0, tl.float64)
    coming_marked = tl.full([SETS], 0.0, tl.float64)
    factor = tl.full((), 1.0, tl.float64)
    for m in range(0, count + 1):
        share = 1.0 / tl.maximum(m, 1).to(tl.float64)
        of_m = tl.where(m == 0, 1.0, at(coming, m) * share)
        marked_m = at(coming_marked, m) * share
        power = place - m
        inside = power >= 1
        of_power = tl.load(sums + power, mask=inside, other=0.0)
        slope = tl.load(sums + SETS + power, mask=inside, other=0.0)
        sign = tl.where(power % 2 == 1, 1.0, -1.0).to(tl.float64)
        coming += sign * of_power * of_m
        coming_marked += sign * (of_power * marked_m + power.to(tl.float64) * slope * of_m)
        products += alone(of_m * factor, m)
        marked += alone(marked_m * factor, m)
        factor *= norm
    return products, marked + at(slopes, 0) * products


@triton.jit
def lined_up(columns, order, lines, allowance, size, BLOCK: tl.constexpr):
    """Copy the columns into their order, the target times the node's allowance."""
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        token = tl.load(order + place)
        for column in range(0, 3):
            tl.store(lines + column * size + place, tl.load(columns + column * size + token))
        tl.store(lines + TARGET * size + place, tl.load(columns + TARGET * size + token) * allowance)
    tl.debug_barrier()


@triton.jit
def tabled(lines, products, marked, count, size, BLOCK: tl.constexpr):
    """Write the sums over sets of 0 to K - 1 tokens after each place; return the sum over all sets of K."""
    back = size
    while back > 0:
        back -= BLOCK
        place = back + BLOCK - 1 - tl.arange(0, BLOCK)
        odds = tl.load(lines + ODDS * size + place)
        outside = tl.load(lines + OUTSIDE * size + place)
        inside = tl.load(lines + INSIDE * size + place)
        behind = tl.full([BLOCK], 1.0, tl.float64)
        behind_marked = at(marked, 0) + before(outside, BLOCK)
        more = tl.full([SETS], 0.0, tl.float64)
        more_marked = alone(tl.sum(outside, 0), 0)
        tl.store(lines + TABLES * size + place, behind)
        tl.store(lines + (TABLES + 1) * size + place, behind_marked)
        for m in range(1, count + 1):
            terms = odds * behind
            above = at(products, m) + before(terms, BLOCK)
            marks = odds * (behind_marked + inside * behind) + outside * above
            behind_marked = at(marked, m) + before(marks, BLOCK)
            behind = above
            more += alone(tl.sum(terms, 0), m)
            more_marked += alone(tl.sum(marks, 0), m)
            if m < count:
                tl.store(lines + (TABLES + 2 * m) * size + place, behind)
                tl.store(lines + (TABLES + 2 * m + 1) * size + place, behind_marked)
        products += more
        marked += more_marked
    tl.debug_barrier()
    return at(marked, count)


@triton.jit
def arrive(lines, whole, count, size, BLOCK: tl.constexpr):
    """Write the probability that each token was drawn and no token before it was accepted, by its allowances.

    One for the case that a sibling is left after it, and one for the case that it is the last.
    """
    found_before = alone(tl.full((), 1.0, tl.float64), 0)
    marked_before = tl.full([SETS], 0.0, tl.float64)
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        odds = tl.load(lines + ODDS * size + place)
        outside = tl.load(lines + OUTSIDE * size + place)
        inside = tl.load(lines + INSIDE * size + place)
        failing = odds * (1.0 - tl.load(lines + ALLOWANCES * size + place))
        # Sets of k tokens before the place that failed, with no mark before it and with one.
        found = tl.full([BLOCK], 1.0, tl.float64)
        marked = at(marked_before, 0) + before(outside, BLOCK)
        more = tl.full([SETS], 0.0, tl.float64)
        more_marked = alone(tl.sum(outside, 0), 0)
        total = tl.full([BLOCK], 0.0, tl.float64)
        as_last = tl.full([BLOCK], 0.0, tl.float64)
        for k in range(0, count):
            table = lines + (TABLES + 2 * (count - 1 - k)) * size + place
            behind = tl.load(table)
            total += as_last
            as_last = marked * behind + found * (tl.load(table + size) + inside * behind)
            terms = failing * found
            next_found = at(found_before, k + 1) + before(terms, BLOCK)
            marks = failing * (marked + inside * found) + outside * next_found
            marked = at(marked_before, k + 1) + before(marks, BLOCK)
            found = next_found
            more += alone(tl.sum(terms, 0), k + 1)
            more_marked += alone(tl.sum(marks, 0), k + 1)
        found_before += more
        marked_before += more_marked
        tl.store(lines + ARRIVING * size + place, total * odds / whole)
        tl.store(lines + LAST * size + place, as_last * odds / whole)
    tl.debug_barrier()


@triton.jit
def untouched(lines, size, BLOCK: tl.constexpr):
    """Returns the first token that gets too much if all is accepted, the mass before it, and a cut."""
    wanted = tl.full((), 0.0, tl.float64)
    for start in range(0, size, BLOCK):
        wanted += tl.sum(tl.load(lines + TARGET * size + start + tl.arange(0, BLOCK)), 0)
    cut = wanted
    scarce = tl.full((), 2147483647, tl.int32)
    passed = tl.full((), 0.0, tl.float64)
    came = tl.full((), 0.0, tl.float64)
    behind = wanted
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        arriving = tl.load(lines + ARRIVING * size + place) + tl.load(lines + LAST * size + place)
        target = tl.load(lines + TARGET * size + place)
        here = came + before(arriving, BLOCK) + behind - before(target, BLOCK)
        cut = tl.minimum(cut, tl.min(here, 0))
        scarce = tl.minimum(scarce, tl.min(tl.where(arriving > target, place, 2147483647), 0))
        passed += tl.sum(tl.where(place < scarce, arriving, 0.0), 0)
        came += tl.sum(arriving, 0)
        behind -= tl.sum(target, 0)
    return tl.minimum(scarce, size), passed, tl.minimum(cut, came)


@triton.jit
def begun(lines, scarce, left, count, size, BLOCK: tl.constexpr):
    """Guess the allowances of the plentiful tokens; of the scarce ones all is accepted."""
    likely_sum = tl.full((), 0.0, tl.float64)
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        odds = tl.load(lines + ODDS * size + place)
        likely_sum += tl.sum(tl.where(place >= scarce, odds / (1.0 + odds), 0.0), 0)
    share = count.to(tl.float64) / tl.maximum(likely_sum, 1e-300)
    given = tl.full((), 0.0, tl.float64)
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        plenty = place >= scarce
        odds = tl.load(lines + ODDS * size + place)
        wanted = tl.where(plenty, tl.load(lines + TARGET * size + place) * (1.0 - SPARE), 0.0)
        free = tl.maximum(left - given - before(wanted, BLOCK), 0.0)
        allowance = at_most_one(wanted, odds / (1.0 + odds) * share * free)
        given += tl.sum(wanted, 0)
        tl.store(lines + ALLOWANCES * size + place, tl.where(plenty, allowance, 1.0))
        tl.store(lines + AT_BEST * size + place, tl.full([BLOCK], 0.0, tl.float64))
        tl.store(lines + LAST_AT_BEST * size + place, tl.full([BLOCK], 0.0, tl.float64))
    tl.debug_barrier()


@triton.jit
def kept_scarce(lines, scarce, size, BLOCK: tl.constexpr):
    """Keep what the scarce tokens get, and so far nothing for the others."""
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        plenty = place >= scarce
        arriving = tl.load(lines + ARRIVING * size + place) + tl.load(lines + LAST * size + place)
        tl.store(lines + FLOWS * size + place, tl.where(plenty, 0.0, arriving))
        tl.store(lines + BEST * size + place, tl.where(plenty, 0.0, 1.0).to(tl.float64))
        tl.store(lines + LAST_BEST * size + place, tl.where(plenty, 0.0, 1.0).to(tl.float64))
    tl.debug_barrier()


@triton.jit
def allowed(wanted, earlier, last, apart):
    """Returns the allowances that accept `wanted`; with `apart`, those where a sibling is left after it."""
    rest = tl.maximum(wanted - tl.minimum(wanted, last), 0.0)
    return tl.where(apart != 0, at_most_one(rest, earlier), at_most_one(wanted, earlier + last))


@triton.jit
def received(lines, scarce, apart, size, BLOCK: tl.constexpr):
    """Set the last allowances; whether no plentiful token gets too much, their sum, whether it will do."""
    most = tl.full((), 0.0, tl.float64)
    total = tl.full((), 0.0, tl.float64)
    partly_got = tl.full((), 0.0, tl.float64)
    partly_wanted = tl.full((), 0.0, tl.float64)
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        plenty = place >= scarce
        allowance = tl.load(lines + ALLOWANCES * size + place)
        target = tl.load(lines + TARGET * size + place)
        last = tl.load(lines + LAST * size + place)
        as_last = tl.where(apart != 0, at_most_one(target * (1.0 - SPARE), last), allowance)
        tl.store(lines + LAST_ALLOWANCES * size + place, as_last)
        got = allowance * tl.load(lines + ARRIVING * size + place) + as_last * last
        most = tl.maximum(most, tl.max(tl.where(plenty & (got > target), 1.0, 0.0), 0))
        total += tl.sum(tl.where(plenty, got, 0.0), 0)
        partly = plenty & (allowance < 1.0)
        partly_got += tl.sum(tl.where(partly, got, 0.0), 0)
        partly_wanted += tl.sum(tl.where(partly, target, 0.0), 0)
    tl.debug_barrier()
    return most == 0.0, total, partly_got >= partly_wanted * (1.0 - 2.0 * SPARE)


@triton.jit
def stepped(lines, scarce, left, better, late, apart, size, BLOCK: tl.constexpr):
    """Keep what is the best so far, and set the next allowances of the plentiful tokens."""
    given = tl.full((), 0.0, tl.float64)
    planned_given = tl.full((), 0.0, tl.float64)
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        plenty = place >= scarce
        allowance = tl.load(lines + ALLOWANCES * size + place)
        earlier = tl.load(lines + ARRIVING * size + place)
        last = tl.load(lines + LAST * size + place)
        as_last = tl.load(lines + LAST_ALLOWANCES * size + place)
        target = tl.load(lines + TARGET * size + place)
        got = tl.where(plenty, allowance * earlier + as_last * last, 0.0)
        kept_now = plenty & (better != 0)
        tl.store(lines + FLOWS * size + place, got, mask=kept_now)
        tl.store(lines + BEST * size + place, allowance, mask=kept_now)
        tl.store(lines + LAST_BEST * size + place, as_last, mask=kept_now)
        at_best = tl.where(kept_now, earlier, tl.load(lines + AT_BEST * size + place))
        last_at_best = tl.where(kept_now, last, tl.load(lines + LAST_AT_BEST * size + place))
        tl.store(lines + AT_BEST * size + place, at_best)
        tl.store(lines + LAST_AT_BEST * size + place, last_at_best)
        wanted = tl.where(plenty, target * (1.0 - SPARE), 0.0)
        planned = tl.where(allowance < 1.0, wanted, tl.minimum(got, wanted))
        over = tl.maximum(left - given - before(got, BLOCK), 0.0)
        planned_over = tl.maximum(left - planned_given - before(planned, BLOCK), 0.0)
        given += tl.sum(got, 0)
        planned_given += tl.sum(planned, 0)
        # Allowances that are larger everywhere make less arrive, so that the whole target may be asked for.
        following = tl.where(
            late != 0,
            allowed(target * (1.0 - ROUNDING), at_best, last_at_best, apart),
            allowed(wanted * over, earlier * planned_over, last * planned_over, apart),
        )
        tl.store(lines + ALLOWANCES * size + place, tl.where(plenty, following, 1.0))
    tl.debug_barrier()


@triton.jit
def solved(lines, products, marked, count, size, BLOCK: tl.constexpr):
    """Write flows and allowances of the tokens in their order; the flows' sum, and a cut of the order."""
    whole = tabled(lines, products, marked, count, size, BLOCK)
    for start in range(0, size, BLOCK):
        tl.store(lines + ALLOWANCES * size + start + tl.arange(0, BLOCK), tl.full([BLOCK], 1.0, tl.float64))
    tl.debug_barrier()
    arrive(lines, whole, count, size, BLOCK)
    scarce, passed, cut = untouched(lines, size, BLOCK)
    left = 1.0 - passed
    kept_scarce(lines, scarce, size, BLOCK)
    best = tl.full((), 0.0, tl.float64)
    apart = tl.full((), 0, tl.int32)
    while apart < 2:
        begun(lines, scarce, left, count, size, BLOCK)
        best = settled(lines, whole, scarce, left, best, apart, count, size, BLOCK)
        apart = tl.where(passed + best < cut * (1.0 - SPARE) - NEAR, apart + 1, 2)
    return passed + best, cut


@triton.jit
def settled(lines, whole, scarce, left, best, apart, count, size, BLOCK: tl.constexpr):
    """Look for allowances of the plentiful tokens by which they get more than `best`; what they get then."""
    found = scarce < 0
    going = whole > 0.0
    step = tl.full((), 0, tl.int32)
    while going & (step < STEPS):
        arrive(lines, whole, count, size, BLOCK)
        fits, total, enough = received(lines, scarce, apart, size, BLOCK)
        better = fits & (total > best)
        best = tl.where(better, total, best)
        found = found | better
        late = found & (step >= STEPS // 2)
        stepped(lines, scarce, left, better.to(tl.int32), late.to(tl.int32), apart, size, BLOCK)
        going = (fits & enough) == 0
        step += 1
    return best


@triton.jit
def kept(lines, order, flows, places, size, BLOCK: tl.constexpr):
    """Write what the tokens get, and their places, as they were offered."""
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        token = tl.load(order + place)
        tl.store(flows + token, tl.load(lines + FLOWS * size + place))
        tl.store(flows + size + token, tl.load(lines + BEST * size + place))
        tl.store(flows + 2 * size + token, tl.load(lines + LAST_BEST * size + place))
        tl.store(places + token, place)
    tl.debug_barrier()


@triton.jit
def unserved_first(lines, order, again, size, BLOCK: tl.constexpr):
    """Write the order that has the tokens in front that are not served in full."""
    unserved = tl.full((), 0, tl.int32)
    for start in range(0, size, BLOCK):
        allowance = tl.load(lines + BEST * size + start + tl.arange(0, BLOCK))
        unserved += tl.sum((allowance >= 1.0).to(tl.int32), 0)
    front = tl.full((), 0, tl.int32)
    rest = unserved
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        first = (tl.load(lines + BEST * size + place) >= 1.0).to(tl.int32)
        first_before = tl.cumsum(first, 0) - first
        others_before = tl.arange(0, BLOCK) - first_before
        tl.store(
            again + tl.where(first == 1, front + first_before, rest + others_before), tl.load(order + place)
        )
        front += tl.sum(first, 0)
        rest += BLOCK - tl.sum(first, 0)
    tl.debug_barrier()


@triton.jit
def flows_of(
    columns,
    order,
    again,
    lines,
    flows,
    places,
    light,
    sums,
    programs,
    allowance,
    norm,
    count,
    size,
    BLOCK: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """Flows, allowances and places of a node's tokens as they were offered; the sum of the flows."""
    products, marked = sets_behind(light, sums, programs, norm, count, PROGRAMS)
    lined_up(columns, order, lines, allowance, size, BLOCK)
    flow, cut = solved(lines, products, marked, count, size, BLOCK)
    kept(lines, order, flows, places, size, BLOCK)
    if flow < cut * (1.0 - SPARE) - NEAR:
        unserved_first(lines, order, again, size, BLOCK)
        lined_up(columns, again, lines, allowance, size, BLOCK)
        second, _ = solved(lines, products, marked, count, size, BLOCK)
        if second > flow:
            flow = second
            kept(lines, again, flows, places, size, BLOCK)
    return flow
