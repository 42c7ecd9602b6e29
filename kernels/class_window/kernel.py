"""A window of two siblings in Triton: the class and the laws; README.md has the derivation."""

import triton
import triton.language as tl

from draftwood.kernels.tree_plan import kernel as r

BUCKETS = tl.constexpr(64)
SIZES = tl.constexpr(32)
TILE = tl.constexpr(8)
STAKE = tl.constexpr(9.999999747378752e-06)  # 1e-5 as float32
TIE = tl.constexpr(1e-6)
UNIT = tl.constexpr(
    1125899906842624.0
)  # sums over tokens are made of integers, 2^50 to the unit, in any order


@triton.jit
def is_ordered(plan, node, CLASSES: tl.constexpr):
    """Returns whether the children of `node` are tried in class order."""
    first = r.entry(plan, node, r.FIRST_CHILD)
    return CLASSES & (first > 0) & (r.entry(plan, first, r.KIND) == r.REMAINING)


@triton.jit
def odds_of(h, draft, is_top, total, rest):
    beside = tl.where(is_top, rest, total - draft)
    return tl.where(beside > 0.0, h / tl.where(beside > 0.0, beside, 1.0), 0.0)


@triton.jit
def bucket_of(share, h, draft, total):
    """Returns the buckets of tokens by the ratio of wanted to proposed probability."""
    proposed = h + draft / tl.where(total > 0.0, total, 1.0)
    rank = tl.minimum(share / tl.where(proposed > 0.0, proposed, 1.0), 1e30).to(tl.float32)
    octaves = (rank.to(tl.int32, bitcast=True) + 524288) >> 20
    return tl.minimum(tl.maximum(octaves - 976, 1), BUCKETS - 1)


@triton.jit
def window_law(numbers, shares, child, token, left, h, draft):
    """Chances of the class, odds, and the law of the one that was tried first, which is `child`."""
    total = r.number(numbers, child, r.W_TOTAL)
    is_top = token == r.child_number(numbers, child, r.W_TOP)
    odds = odds_of(h, draft, is_top, total, r.number(numbers, child, r.W_REST))
    bucket = bucket_of(left / r.number(numbers, child, r.W_SCALE), h, draft, total)
    table = shares + r.child_number(numbers, child, r.WINDOW) * BUCKETS
    f = tl.load(table + bucket, mask=draft > STAKE, other=0.0)
    # What a token takes from itself is no rival's.
    better = r.number(numbers, child, r.BETTER) - f * draft
    worse = r.number(numbers, child, r.WORSE) - (1.0 - f) * odds
    better = tl.maximum(tl.where(is_top, r.number(numbers, child, r.BETTER_TOP), better), 0.0)
    worse = tl.maximum(tl.where(is_top, r.number(numbers, child, r.WORSE_TOP), worse), 0.0)
    lost = tl.maximum(h - odds * better, 0.0)
    return f, odds, f * h + (1.0 - f) * lost + f * draft * worse


@triton.jit
def second_law(numbers, child, token, name, f, odds, draft):
    """The law of the other one, given `child`, whose token is `name`; it sums to the child's `SIZE`."""
    belongs = r.number(numbers, child, r.BELONGS)
    law = r.number(numbers, child, r.STAYED) * (1.0 - (1.0 - belongs) * f) * draft
    law += r.number(numbers, child, r.CAME) * (1.0 - f) * odds
    return tl.where(token == name, 0.0, law)


@triton.jit
def ordered_left(plan, numbers, shares, node, token, inside):
    """Returns the target's weights left by tried children, the waiting one's law, and the draft's rest."""
    left = r.weights(r.entry(plan, node, r.TARGET), token, inside) * r.number(numbers, node, r.ALLOWANCE)
    draft = r.weights(r.entry(plan, r.entry(plan, node, r.FIRST_CHILD), r.LAW), token, inside)
    h = draft
    child = r.child_number(numbers, node, r.FIRST_TRIED)
    while child > 0:
        name = r.entry(plan, child, r.TOKEN)
        law = h
        if r.number(numbers, child, r.WINDOW) > 0.0:
            f, odds, law = window_law(numbers, shares, child, token, left, h, draft)
            size = r.number(numbers, child, r.SIZE)
            h = second_law(numbers, child, token, name, f, odds, draft) / tl.where(size > 0.0, size, 1.0)
            draft = tl.where(token == name, 0.0, draft)
        left = tl.maximum(left - r.number(numbers, child, r.ALPHA) * law, 0.0)
        child = r.child_number(numbers, child, r.NEXT_TRIED)
    return left, h, draft


@triton.jit
def passed(f, target, h, draft, odds, further):
    """The mass `[sizes]` of `target` that siblings let through, for every class `f` `[sizes, buckets]`."""
    inside = f * draft
    out = (1.0 - f) * odds
    p1 = h - out * (tl.sum(inside, 1)[:, None] - inside) + inside * (tl.sum(out, 1)[:, None] - out)
    p1 = tl.maximum(p1, 0.0)
    passes = tl.minimum(target, p1)
    failed = tl.where(p1 > 0.0, (p1 - passes) / tl.where(p1 > 0.0, p1, 1.0), 0.0)
    stayed = failed * odds
    came = failed * inside
    low = stayed * (1.0 - f)
    p2 = tl.sum(stayed, 1)[:, None] - stayed - f * (tl.sum(low, 1)[:, None] - low)
    p2 = draft * p2 + out * (tl.sum(came, 1)[:, None] - came)
    more = tl.minimum(target - passes, tl.maximum(p2, 0.0))
    total = tl.sum(passes + more, 1)
    left = target - passes - more
    all_h = tl.sum(h, 1)
    all_draft = tl.sum(draft, 1)
    for _ in range(0, further):
        missing = (all_h - total) / tl.where(all_draft > 0.0, all_draft, 1.0)
        again = tl.minimum(left, missing[:, None] * draft)
        total += tl.sum(again, 1)
        left -= again
    return total


@triton.jit
def prefix_shares(bound, above, mass):
    """The chances of buckets of this `mass`, with so much `above` them, in classes that hold `bound`."""
    f = (bound - above) / tl.where(mass > 0.0, mass, 1.0)
    f = tl.where(mass > 0.0, tl.minimum(tl.maximum(f, 0.0), 1.0), 0.0)
    return tl.where(f < 1e-6, 0.0, f)  # what rounding left is not worth a coin


@triton.jit
def best_shares(table, target, h, draft, odds, mass, further):
    """The chance of every bucket `[buckets]` in the class that lets most through, also written to `table`.

    Other arguments are sums over buckets; the first has what is never of the class, and no `mass`.
    """
    above = tl.cumsum(mass, 0, reverse=True) - mass
    growth = tl.sum(mass, 0) / (SIZES - 1)
    # A few sizes at a time, for want of registers.
    for tile in range(0, SIZES // TILE):
        size = tile * TILE + tl.arange(0, TILE)
        f = prefix_shares((size.to(tl.float64) * growth)[:, None], above[None, :], mass[None, :])
        scores = passed(f, target[None, :], h[None, :], draft[None, :], odds[None, :], further)
        tl.store(table + size, scores)
    tl.debug_barrier()
    size = tl.arange(0, SIZES)
    scores = tl.load(table + size)
    best = tl.min(tl.where(scores >= tl.max(scores, 0) - TIE, size, SIZES - 1), 0)
    shares = prefix_shares(best.to(tl.float64) * growth, above, mass)
    tl.debug_barrier()
    tl.store(table + tl.arange(0, BUCKETS), shares)
    return shares


@triton.jit
def classed(plan, numbers, shares, tally, odds_rest, node, used):
    """Choose the class of a window at `node`, toss its coins, and settle which sibling goes first.

    `tally` has the buckets' sums over all tokens except the likeliest, `odds_rest` the sum of their odds.

    Returns that sibling, its token's probability by target and law, and whether the uniforms sufficed.
    """
    waiting = r.child_number(numbers, node, r.WAITING)
    following = r.entry(plan, r.child_number(numbers, node, r.LAST), r.NEXT_SIBLING)
    scale = r.number(numbers, node, r.SCALE)
    total = r.number(numbers, node, r.TOTAL)
    rest = r.number(numbers, node, r.REST)
    top = r.child_number(numbers, node, r.TOP)
    further = tl.full((), 0, tl.int32)
    after = r.entry(plan, following, r.NEXT_SIBLING)
    while after > 0:
        further += 1
        after = r.entry(plan, after, r.NEXT_SIBLING)

    # The waiting sibling's token, the next one's, and the likeliest.
    which = tl.arange(0, 4)
    token = tl.where(which == 0, r.entry(plan, waiting, r.TOKEN), r.entry(plan, following, r.TOKEN))
    token = tl.where(which == 2, top, token)
    left, h, draft = ordered_left(plan, numbers, shares, node, token, (which < 3) & (token >= 0))
    odds = odds_of(h, draft, token == top, total, rest)
    places = bucket_of(left / scale, h, draft, total)
    is_third = which == 2
    top_stake = tl.sum((is_third & (draft > STAKE)).to(tl.int32), 0)
    top_place = tl.sum(tl.where(is_third, places, 0), 0)
    top_draft = tl.sum(tl.where(is_third, draft, 0.0), 0)
    top_odds = tl.sum(tl.where(is_third, odds, 0.0), 0)

    bucket = tl.arange(0, BUCKETS)
    beside_draft = tl.load(tally + 2 * BUCKETS + bucket, volatile=True).to(tl.float64) / UNIT * total
    beside_odds = tl.load(tally + 3 * BUCKETS + bucket, volatile=True).to(tl.float64) / UNIT
    beside_odds /= tl.where(total > 0.0, total, 1.0)
    own = (bucket == top_place) & (top_stake > 0)
    target_sums = tl.load(tally + bucket, volatile=True).to(tl.float64) / UNIT
    target_sums += tl.where(own, tl.sum(tl.where(is_third, left / scale, 0.0), 0), 0.0)
    h_sums = tl.load(tally + BUCKETS + bucket, volatile=True).to(tl.float64) / UNIT
    h_sums += tl.where(own, tl.sum(tl.where(is_third, h, 0.0), 0), 0.0)
    draft_sums = beside_draft + tl.where(own, top_draft, 0.0)
    odds_sums = beside_odds + tl.where(own, top_odds, 0.0)
    mass = tl.where(bucket > 0, h_sums + draft_sums / tl.where(total > 0.0, total, 1.0), 0.0)
    allowance = 1.0 - (1.0 - r.number(numbers, node, r.ALLOWANCE)) / scale
    target_sums = with_others(target_sums, allowance)
    f = best_shares(
        shares + following * BUCKETS,
        target_sums,
        with_others(h_sums, 1.0),
        with_others(draft_sums, total),
        with_others(odds_sums, odds_rest + top_odds),
        mass,
        further,
    )
    for column in range(0, 4):
        tl.store(tally + column * BUCKETS + bucket, tl.full([BUCKETS], 0, tl.int64))

    top_f = tl.sum(tl.where(own, f, 0.0), 0)
    better = tl.sum(f * beside_draft, 0)
    worse = tl.maximum(odds_rest - tl.sum(f * beside_odds, 0), 0.0)
    chances = tl.sum(tl.where(bucket[None, :] == places[:, None], f[None, :], 0.0), 1)
    chances = tl.where(draft > STAKE, chances, 0.0)
    stay_coin = r.uniform(plan, used)
    come_coin = r.uniform(plan, used + 1)
    stays = stay_coin < tl.sum(tl.where(which == 0, chances, 0.0), 0)
    comes = come_coin < tl.sum(tl.where(which == 1, chances, 0.0), 0)
    swap = comes & (stays == 0)
    child = tl.where(swap, following, waiting)
    is_first = which == tl.where(swap, 1, 0)
    first_f = tl.sum(tl.where(is_first, chances, 0.0), 0)
    first_draft = tl.sum(tl.where(is_first, draft, 0.0), 0)

    r.keep(numbers, node, r.WAITING, tl.where(swap, waiting, following).to(tl.float64))
    r.keep(numbers, node, r.LAST, following.to(tl.float64))
    r.keep(numbers, child, r.WINDOW, following.to(tl.float64))
    r.keep(numbers, child, r.W_SCALE, scale)
    r.keep(numbers, child, r.W_TOTAL, total)
    r.keep(numbers, child, r.W_TOP, top.to(tl.float64))
    r.keep(numbers, child, r.W_REST, rest)
    r.keep(numbers, child, r.BETTER, better + top_f * top_draft)
    r.keep(numbers, child, r.WORSE, worse + (1.0 - top_f) * top_odds)
    r.keep(numbers, child, r.BETTER_TOP, better)
    r.keep(numbers, child, r.WORSE_TOP, worse)
    r.keep(numbers, child, r.STAYED, tl.sum(tl.where(is_first, odds, 0.0), 0))
    r.keep(numbers, child, r.CAME, first_draft * first_f)
    r.keep(numbers, child, r.BELONGS, first_f)
    # What is read of this is what one thread has written.
    tl.debug_barrier()
    _, _, law = window_law(numbers, shares, child, token, left, h, draft)
    target_mass = tl.sum(tl.where(is_first, left, 0.0), 0) / scale
    return (
        child,
        target_mass,
        tl.sum(tl.where(is_first, law, 0.0), 0),
        (stay_coin >= 0.0) & (come_coin >= 0.0),
    )


@triton.jit
def with_others(sums, total):
    """Sums over buckets, the first of which has what is left of `total`."""
    return tl.where(tl.arange(0, BUCKETS) == 0, tl.maximum(total - tl.sum(sums, 0), 0.0), sums)
