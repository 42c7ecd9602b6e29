"""Sums over the sets of siblings that may have been drawn, along an order of the tokens."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from draftwood.kernels.machine_code import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Weights = NDArray[np.float32] | NDArray[np.float64]


@compiled
def sums_after(
    odds: Floats, outside: Floats, inside: Floats, light: Floats, light_marked: Floats
) -> tuple[Floats, Floats, float]:
    """Returns sums over sets of m < K tokens after each place, `[n, K]` both, and the last one over all sets.

    The first are of the products of their odds, the others of the same times the marks of all tokens after
    the place, as they are in the set or not. A place is a token of the order.

    Args:
        odds, outside, inside: of the tokens in their order, `[n]`; the marks as in `Columns`.
        light, light_marked: the sums over sets of 0 to K tokens after all of them, `[K + 1]`.
    """
    n, count = len(odds), len(light) - 1
    products, marked = np.empty((n, count)), np.empty((n, count))
    of, with_marks = light.copy(), light_marked.copy()
    for place in range(n - 1, -1, -1):
        products[place], marked[place] = of[:count], with_marks[:count]
        for m in range(count, 0, -1):
            with_marks[m] += odds[place] * (with_marks[m - 1] + inside[place] * of[m - 1])
            with_marks[m] += outside[place] * of[m]
            of[m] += odds[place] * of[m - 1]
        with_marks[0] += outside[place] * of[0]
    return products, marked, with_marks[count]


@compiled
def untouched(
    odds: Floats, outside: Floats, inside: Floats, products: Floats, marked: Floats, whole: float
) -> Floats:
    """The chance that each token is drawn and nothing before it, `[n]`; arguments as in `served`."""
    arriving, passed = np.empty_like(odds), 0.0
    for place in range(len(odds)):
        sets = marked[place, -1] + (passed + inside[place]) * products[place, -1]
        arriving[place] = odds[place] * sets / whole
        passed += outside[place]
    return arriving


@compiled
def least_cut(arriving: Floats, wanted: Floats) -> float:
    """Returns the least, over the places of an order, of what arrives before them and is wanted after them.

    Args:
        arriving: as `untouched` gives it.
        wanted: `[n]`.
    """
    passed, most_behind = 0.0, 0.0
    for place in range(len(wanted)):
        most_behind += wanted[place]
    cut = most_behind
    for place in range(len(wanted)):
        passed += arriving[place]
        most_behind -= wanted[place]
        cut = min(cut, passed + most_behind)
    return cut


@compiled
def served(
    odds: Floats,
    outside: Floats,
    inside: Floats,
    products: Floats,
    marked: Floats,
    whole: float,
    wanted: Floats,
    last_apart: bool,
) -> tuple[Floats, Floats, Floats]:
    """One token after another takes of what arrives as much as it wants.

    With `last_apart`, what arrives when all other siblings have failed is accepted first, and of the rest
    what is still wanted.

    Args:
        odds, outside, inside: as in `sums_after`.
        products, marked, whole: as it gives them.
        wanted: the most that each token may receive, `[n]`.
        last_apart: whether the last sibling has a separate allowance.

    Returns:
        Flows, allowances and last allowances, as in `Flows`.
    """
    n, count = products.shape
    flows, allowances, last_allowances = np.empty(n), np.empty(n), np.empty(n)
    # Sums over sets of k tokens that precede the place and failed, and with the marks before it.
    found, found_marked = np.zeros(count), np.zeros(count)
    found[0] = 1
    for place in range(n):
        earlier, last = 0.0, 0.0
        for k in range(count):
            rest = products[place, count - 1 - k]
            marks = marked[place, count - 1 - k] + inside[place] * rest
            earlier += last
            last = found_marked[k] * rest + found[k] * marks
        earlier *= odds[place] / whole
        last *= odds[place] / whole
        if last_apart:
            at_last = 1.0 if last <= wanted[place] else wanted[place] / last
            left = max(wanted[place] - last, 0.0)
            allowance = 1.0 if earlier <= left else left / earlier
        else:
            arriving = earlier + last
            allowance = at_last = 1.0 if arriving <= wanted[place] else wanted[place] / arriving
        flows[place] = allowance * earlier + at_last * last
        allowances[place], last_allowances[place] = allowance, at_last
        failing = odds[place] * (1 - allowance)
        for k in range(count - 1, 0, -1):
            found_marked[k] += failing * (found_marked[k - 1] + inside[place] * found[k - 1])
            found_marked[k] += outside[place] * found[k]
            found[k] += failing * found[k - 1]
        found_marked[0] += outside[place] * found[0]
    return flows, allowances, last_allowances


@compiled
def split(
    weights: Weights, factor: float, target: Weights, scale: float, spare: float, heavy: float
) -> tuple[Ints, Weights]:
    """The tokens that are to be looked at one by one, and the weights of the others, `[vocab]`, 0 for none.

    A token weighs `weights` times `factor`.

    The others could receive at most `spare` together, each the smaller of its weight and its share of the
    target; they are the least ones by that. None of them weighs more than `heavy`.

    Args:
        weights, target: `[vocab]`.
        scale: of `target`.
        spare: above 0.
        heavy: a weight.
    """
    n, unit = len(weights), weights.dtype.type(factor)
    worths, chosen, others = np.empty(n, np.float32), np.empty(n, np.bool_), np.empty_like(weights)
    share, always = np.float32(1 / scale), np.float32(np.inf)
    for token in range(n):
        weight, wanted = weights[token] * unit, target[token] * share
        worths[token] = always if weight > heavy else weight if weight < wanted else wanted
    # The bound below which tokens are left out is `spare` less some eighths of an octave, which do not depend
    # on the vocabulary; so many surely suffice.
    enough, few = int(np.ceil(8 * np.log2(n))), 0
    while enough - few > 1:
        middle = (enough + few) // 2
        bound, left_out = np.float32(spare * 2.0 ** (-middle / 8)), np.float32(0)
        for token in range(n):
            left_out += worths[token] if worths[token] < bound else np.float32(0)
        if left_out <= spare:
            enough = middle
        else:
            few = middle
    least = np.float32(spare * 2.0 ** (-enough / 8))
    for token in range(n):
        chosen[token] = worths[token] >= least
        others[token] = 0 if chosen[token] else weights[token] * unit
    tokens, kept = np.empty(n, np.int64), 0
    for token in range(n):  # without a branch, as nobody can guess which way it goes
        tokens[kept] = token
        kept += chosen[token]
    return tokens[:kept].copy(), others


@compiled
def factor_of(odds: Floats, light: float, count: int) -> float:
    """By what odds are to be multiplied that `count` tokens are expected, if tokens come by themselves.

    Args:
        odds: `[n]`.
        light: the sum of other tokens' odds, all of them small.
        count: at least 1.
    """
    factor, following = 1.0, 1.0
    for _ in range(20):
        factor = following
        expected = slope = factor * light
        for place in range(len(odds)):
            share = factor * odds[place] / (1 + factor * odds[place])
            expected += share
            slope += share * (1 - share)
        if abs(expected - count) <= 0.02 * count:
            break
        # As the logarithm of the factor; in steps of bounded size.
        following = factor * np.exp(min(max((count - expected) / max(slope, 1e-3), -3.0), 3.0))
    return factor


@compiled
def powers_of(weights: Weights) -> Floats:
    """The sums of the first six powers of `weights` `[vocab]`, `[6]`."""
    first = second = third = fourth = fifth = sixth = 0.0
    for token in range(len(weights)):
        weight = np.float64(weights[token])
        square = weight * weight
        cube = square * weight
        first += weight
        second += square
        third += cube
        fourth += square * square
        fifth += cube * square
        sixth += cube * cube
    return np.array([first, second, third, fourth, fifth, sixth])


@compiled
def pair_sums(weights: Weights) -> tuple[Floats, Floats]:
    """The sums of w and w^2 over `weights` `[vocab]`, all below 1, and of both over 1 - w, `[2]` each."""
    first = second = first_tried = second_tried = 0.0
    for token in range(len(weights)):
        weight = np.float64(weights[token])
        first += weight
        second += weight * weight
        tried = weight / (1 - weight)
        first_tried += tried
        second_tried += weight * tried
    return np.array([first, second]), np.array([first_tried, second_tried])


@compiled
def of_light_sets(powers: Floats, slopes: Floats, factor: float, count: int) -> tuple[Floats, Floats]:
    """Over sets of 0 to K tokens of small odds: sums of products of odds, and the same with marks, `[K + 1]`.

    By Newton's identities; the marks go along as derivatives.

    Args:
        powers, slopes: as in `LightSums`.
        factor: by which all odds are multiplied.
        count: K.
    """
    products, marked = np.zeros(count + 1), np.zeros(count + 1)
    products[0] = 1
    for m in range(1, count + 1):
        sign, scale = 1 / m, 1.0
        for j in range(1, min(m, len(powers)) + 1):
            scale *= factor
            products[m] += sign * scale * products[m - j] * powers[j - 1]
            marks = marked[m - j] * powers[j - 1] + j * products[m - j] * slopes[j - 1]
            marked[m] += sign * scale * marks
            sign = -sign
    return products, marked


@compiled
def total_without(weights: Weights, tokens: Ints) -> float:
    """Returns the sum in float64 of `weights` `[vocab]` without `tokens`."""
    rest, total = weights.copy(), 0.0
    for token in tokens:
        rest[token] = 0
    for token in range(len(rest)):
        total += rest[token]
    return total


@compiled
def places_of(tokens: Ints, wanted: Ints) -> Ints:
    """Returns the place of each of `wanted` among `tokens`, -1 if it is not there."""
    places = np.full(len(wanted), -1)
    for place in range(len(tokens)):
        for number in range(len(wanted)):
            if tokens[place] == wanted[number]:
                places[number] = place
    return places
