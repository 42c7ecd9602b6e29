"""What each token gets at a node whose siblings are judged as one set: its flow and its allowance."""

from __future__ import annotations

from typing import NamedTuple

import attrs
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from draftwood.strategies.verifiers.race_laws import Columns, Floats, LightSums, SetLaw

Ints = NDArray[np.int64]

LEFT_OUT = 5e-4
"""About what the tokens may be worth together that are not offered at all."""

WHOLE = 256
"""A vocabulary of so many tokens is offered whole: to choose among them saves nothing."""

SPARE = 2e-4
"""The share of its target that a token forgoes, so that a solution found in a few steps is surely allowed."""

STEPS = 8
"""Steps that look for the allowances; three are usual."""

NEAR = 2e-3
"""A flow is good enough that comes so close to its cut."""

_ROUNDING = 1e-12

LIGHT = 1e-3
"""Odds up to this may be summed up in powers: of six of them nothing is left."""


@attrs.frozen(eq=False)
class Flows:
    """What the tokens of a node get.

    Attributes:
        tokens: that are offered, in the order in which they are tried, `[n]`.
        flows: the mass that each receives, `[n]`.
        allowances: of each when it is tried, `[n]`.
        last_allowances: of each when all other siblings were tried before, `[n]`.
    """

    tokens: Ints
    flows: Floats
    allowances: Floats
    last_allowances: Floats


def flows_of(law: SetLaw, target: Float[Tensor, " vocab"], scale: float = 1.0) -> Flows:
    """The flows that a set of `law` sends to `target` over `scale`, which sums to at most 1.

    Tokens are ranked by target over their chance to be in the set. One after another takes what comes: it
    was drawn, and nothing before it was accepted. That is known for any order that tells nothing of the drawn
    tokens, and it gets the allowance at which no more than its target arrives. Where the flow misses a bound,
    the last of the siblings takes all that it may, for nobody waits behind it, and the others what is left.
    If that is not enough, the order is made once more, with those first that are not served in full.

    Tokens that could add no more than about `LEFT_OUT` in all are not offered. They count as one class at
    the end of the order.

    Args:
        law: of the siblings, on the CPU.
        target: on the CPU.
        scale: of `target`, above 0.
    """
    tokens, others = _offered(law, target, scale)
    light = law.light(others)
    wanted = target.numpy()[tokens].astype(np.float64) / scale
    columns = law.at(tokens)
    end = light.of_sets(law.count, columns.beside)
    # Tokens that are neither wanted nor offered stand last, as numbers that are none do.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        share, norm = _share(columns, light, law.count)
        order = _ranked(-wanted / share)
    columns, wanted, tokens = columns.at(order), wanted[order], tokens[order]
    first, cut = _solved(columns, wanted, norm, end)
    best = Flows(tokens, *first)
    if first.flows.sum() < (1 - SPARE) * cut - NEAR:
        served = first.allowances < 1
        again = np.concatenate([np.flatnonzero(~served), np.flatnonzero(served)])
        second, _ = _solved(columns.at(again), wanted[again], norm, end)
        if second.flows.sum() > first.flows.sum():
            best = Flows(tokens[again], *second)
    return best


def flows_of_all(tokens: Ints, target: Float[Tensor, " vocab"], scale: float = 1.0) -> Flows:
    """The flows where `tokens` are all that can be drawn, so that each of them surely is, `[n]` each.

    Args:
        tokens: all of them.
        target: over the vocabulary, on the CPU, with a sum of at most `scale`.
        scale: of `target`, above 0.
    """
    flows = target.numpy()[tokens].astype(np.float64) / scale
    whole = float(target.sum(dtype=torch.float64)) / scale
    others = whole - flows.sum() + max(1 - whole, 0)
    left = flows[::-1].cumsum()[::-1] + max(others, 0)
    allowances = np.divide(flows, left, out=np.zeros_like(flows), where=left > 0)
    return Flows(tokens, flows, allowances, allowances)


def _offered(law: SetLaw, target: Tensor, scale: float) -> tuple[Ints, Tensor]:
    """Which tokens are worth a look, or too heavy for the class of the others; the weights of all others."""
    others = law.weights * law.factor
    if len(others) <= WHOLE:
        return np.arange(len(others)), torch.zeros_like(others)
    worth = torch.minimum(others * scale if scale != 1 else others, target).numpy()
    heavy = others.numpy()
    tokens = np.flatnonzero((worth >= LEFT_OUT * scale / len(worth)) | (heavy > LIGHT))
    # Of these the least ones, by quarters of an octave, as long as they are not missed together.
    values = worth[tokens].astype(np.float32)
    sizes = values.view(np.int32) >> 21
    left_out = np.bincount(sizes, values).cumsum()
    spare = LEFT_OUT * scale - max(float(worth.sum(dtype=np.float64)) - float(left_out[-1:].sum()), 0.0)
    tokens = tokens[(sizes >= np.searchsorted(left_out, spare)) | (heavy[tokens] > LIGHT)]
    heavy[tokens] = 0
    while (most := float(heavy.max(initial=0))) > 0:
        bound = float(others.sum()) / (8 * law.count)
        if most <= bound:
            break
        more = np.flatnonzero(heavy > bound)
        tokens, heavy[more] = np.concatenate([tokens, more]), 0
    return tokens, others


def _ranked(values: Floats) -> Ints:
    """The places of `values` in rising order, equal ones as they stand."""
    order: Ints = np.argsort(values)
    ranked = values[order]
    # The plain sort takes a fourth of the time, and leaves open what becomes of equal values.
    return np.argsort(values, kind="stable") if (ranked[1:] == ranked[:-1]).any() else order


def _share(law: Columns, light: LightSums, count: int) -> tuple[Floats, float]:
    """About the chance that each token is in the set, `[n]`, up to a factor; by what odds are multiplied."""
    odds, following = law.odds, 1.0
    if law.inside is not None:  # a pair, where the chance has a closed form
        tried = odds * law.inside
        share: Floats = odds * (1 + float(tried.sum()) + light.slopes[0] - tried)
        return share, 1.0
    # As if tokens were in the set by themselves, at odds by which as many are expected.
    for _ in range(6):
        factor = following
        share = factor * odds
        share /= 1 + share
        expected = float(share.sum()) + factor * light.powers[0]
        if abs(expected - count) <= 0.02 * count:
            break
        slope = float((share * (1 - share)).sum()) + factor * light.powers[0]
        # As the logarithm of the factor; in steps of bounded size.
        following = factor * float(np.exp(np.clip((count - expected) / max(slope, 1e-3), -3, 3)))
    return share, factor


class _Solution(NamedTuple):
    """As in `Flows`."""

    flows: Floats
    allowances: Floats
    last_allowances: Floats


def _solved(law: Columns, target: Floats, norm: float, end: tuple[Floats, Floats]) -> tuple[_Solution, float]:
    """Flows and allowances in the order of `law`, and a bound of the flow: a cut of this order.

    The search begins with tokens that are in the set by themselves, at `norm` times their odds.

    The allowances depend on those before them. A step takes the chance that each token comes, given that
    nothing was accepted before it, as the last step left it, and asks for `target` less `SPARE`; that
    settles within a few. Every set of allowances by which no token receives more than its target is
    lossless, so the best of those is taken.
    """
    tables = Tables.of(law, end)
    nothing = np.zeros_like(target)
    if not tables.whole > 0:  # a set as unlikely as rounding: nobody is served
        return _Solution(nothing, nothing, nothing), 0.0
    untouched = tables.arriving()
    cuts = _before(untouched) + target[::-1].cumsum()[::-1]
    cut = float(cuts.min(initial=min(untouched.sum(), target.sum())))
    over = untouched > target
    scarce = int(over.argmax()) if over.any() else len(target)
    front, passed = untouched[:scarce], float(untouched[:scarce].sum())
    behind = tables.behind(scarce), target[scarce:], norm, 1 - passed
    plenty = _plenty(*behind)
    if passed + plenty.flows.sum() < (1 - SPARE) * cut - NEAR:
        apart = _plenty(*behind, last_apart=True)
        if apart.flows.sum() > plenty.flows.sum():
            plenty = apart
    allowances, last = (np.concatenate([np.ones(scarce), of]) for of in plenty[1:])
    return _Solution(np.concatenate([front, plenty.flows]), allowances, last), cut


def _plenty(
    tables: Tables, target: Floats, norm: float, left: float, *, last_apart: bool = False
) -> _Solution:
    """Flows and allowances behind the tokens of which all are taken; `left` is the chance that none came.

    With `last_apart`, what arrives when all other siblings have failed is accepted first, as far as wanted.

    Allowances that are larger everywhere make less arrive everywhere. So where no token gets more than its
    target, allowances that take the whole target from what arrives then are larger, and lossless too.
    """
    nothing = np.zeros_like(target)
    best = _Solution(nothing, nothing, nothing)
    at_best: tuple[Floats, Floats] | None = None
    wanted = (1 - SPARE) * target
    likely = norm * tables.law.odds
    likely /= 1 + likely
    likely *= tables.count / max(float(likely.sum()), 1e-300)
    allowances = _at_most_one(wanted, likely * np.maximum(left - _before(wanted), 0))
    for step in range(STEPS if len(target) else 0):
        earlier, last = tables.arriving_apart(allowances)
        last_allowances = _at_most_one(wanted, last) if last_apart else allowances
        received = allowances * earlier + last_allowances * last
        partly = allowances < 1
        if (received <= target).all():
            if received.sum() > best.flows.sum():
                best, at_best = _Solution(received, allowances, last_allowances), (earlier, last)
            if received[partly].sum() >= (1 - 2 * SPARE) * target[partly].sum():
                break
        if step >= STEPS // 2 and at_best is not None:
            allowances = _allowed((1 - _ROUNDING) * target, *at_best, last_apart=last_apart)
            continue
        planned = np.where(partly, wanted, np.minimum(received, wanted))
        over, planned_over = (np.maximum(left - _before(given), 0) for given in (received, planned))
        coming = earlier * planned_over, last * planned_over
        allowances = _allowed(wanted * over, *coming, last_apart=last_apart)
    return best


def _allowed(wanted: Floats, earlier: Floats, last: Floats, *, last_apart: bool) -> Floats:
    """The allowances by which `wanted` is accepted; with `last_apart` where a sibling is left behind."""
    if not last_apart:
        return _at_most_one(wanted, earlier + last)
    return _at_most_one(np.maximum(wanted - np.minimum(wanted, last), 0), earlier)


def _at_most_one(wanted: Floats, arriving: Floats) -> Floats:
    """The allowances by which `wanted` of `arriving` is accepted, or all of it."""
    allowances = np.ones_like(wanted)
    np.divide(wanted, arriving, out=allowances, where=arriving > wanted)
    return allowances


@attrs.frozen(eq=False)
class Tables:
    """Sums over the sets that lie behind each place of an order, or of its end.

    Attributes:
        law: of the tokens in their order.
        count: K.
        products: of the odds of sets of m < K tokens behind place j, each row up to a factor, `[K, n]`.
        marked: the same with the marks of all tokens behind the place.
        scales: the logarithms of those factors, and of the one of K tokens, `[K + 1]`.
        passed: the marks of the tokens before the first place.
        whole: of all sets, over its factor.
    """

    law: Columns
    count: int
    products: Floats
    marked: Floats
    scales: list[float]
    passed: float
    whole: float

    @classmethod
    def of(cls, law: Columns, end: tuple[Floats, Floats]) -> Tables:
        """`end`: the sums over sets of 0 to K tokens behind the order, as `LightSums.of_sets` gives them."""
        count, n = len(end[0]) - 1, len(law.odds)
        # From the last place to the first, so that sums run on; entry 0 is behind all places.
        back = law.at(slice(None, None, -1))
        odds = back.odds.copy()
        outside, inside = (None if of is None else of.copy() for of in (back.outside, back.inside))
        products, marked = np.empty((2, count + 1, n + 1))
        products[0], marked[0] = 1, end[1][0]
        if outside is not None:
            marked[0, 1:] += outside.cumsum()
        terms, scales, scale = np.empty(n + 1), [0.0], 0.0
        for m in range(1, count + 1):
            above, above_marked = products[m - 1, :-1], marked[m - 1, :-1]
            factor = np.exp(min(-scale, 600.0))
            terms[0] = end[0][m] * factor
            np.multiply(odds, above, out=terms[1:])
            np.add.accumulate(terms, out=products[m])
            terms[0] = end[1][m] * factor
            if inside is None:
                np.multiply(odds, above_marked, out=terms[1:])
            else:
                np.multiply(odds, above_marked + inside * above, out=terms[1:])
            if outside is not None:
                terms[1:] += outside * products[m, :-1]
            np.add.accumulate(terms, out=marked[m])
            most = float(products[m, -1])
            if most > 0 and not 1e-60 < most < 1e60:
                products[m] /= most
                marked[m] /= most
                scale += float(np.log(most))
            scales.append(scale)
        # Of every place what lies behind it, the first place first.
        behind, marked_behind = (np.ascontiguousarray(of[:-1, -2::-1]) for of in (products, marked))
        return cls(law, count, behind, marked_behind, scales, 0.0, float(marked[-1, -1]))

    def behind(self, place: int) -> Tables:
        """Those of the places from this one on."""
        before = self.law.outside
        return attrs.evolve(
            self,
            law=self.law.at(slice(place, None)),
            products=self.products[:, place:],
            marked=self.marked[:, place:],
            passed=0.0 if before is None else float(before[:place].sum()),
        )

    def arriving(self, allowances: Floats | None = None) -> Floats:
        """The chance that each token was drawn, and nothing before it was accepted, `[n]`.

        Args:
            allowances: `[n]`; None is 1 of all.
        """
        earlier, last = self.arriving_apart(allowances)
        return earlier + last

    def arriving_apart(self, allowances: Floats | None = None) -> tuple[Floats, Floats]:
        """The same where a sibling is left behind the token, and where it is the last one, `[n]` each."""
        law, last = self.law, self.count - 1
        outside, inside = law.outside, law.inside
        odds = law.odds
        # Sets of k tokens that stand before the place and failed, with no mark before it and with one.
        found: Floats | float = 1.0
        found_marked: Floats | float = 0.0 if outside is None else self.passed + _before(outside)
        scale = 0.0
        total: Floats = self.marked[last] + found_marked * self.products[last]
        if inside is not None:
            total += inside * self.products[last]
        if self.scales[last] != self.scales[-1]:
            total *= np.exp(self.scales[last] - self.scales[-1])
        as_last = np.zeros_like(odds)
        if allowances is not None and len(odds):
            failing = odds * (1 - allowances)
            terms, part = np.empty_like(odds), np.empty_like(odds)
            for k in range(1, self.count):
                # With the marks first, as they need what was found with one token less.
                np.multiply(failing, found_marked, out=terms)
                if inside is not None:
                    terms += np.multiply(failing, inside * found, out=part)
                found = _before(failing if k == 1 else np.multiply(failing, found, out=part))
                if outside is not None:
                    terms += np.multiply(outside, found, out=part)
                found_marked = _before(terms)
                if not (most := float(found[-1])) > 0:
                    break
                if not 1e-60 < most < 1e60:
                    found /= most
                    found_marked /= most
                    scale += float(np.log(most))
                products, marked = self.products[last - k], self.marked[last - k]
                if inside is not None:
                    marked = marked + inside * products
                np.multiply(found_marked, products, out=part)
                part += np.multiply(found, marked, out=terms)
                if (factor := scale + self.scales[last - k] - self.scales[-1]) != 0:
                    part *= np.exp(factor)
                if k == last:
                    as_last = part
                else:
                    total += part
        for chances in (total, as_last):
            chances *= odds
            chances /= self.whole
        return (as_last, total) if last == 0 else (total, as_last)


def _before(values: Floats) -> Floats:
    """The sums of what stands before each place."""
    sums = np.empty_like(values)
    sums[:1] = 0
    np.add.accumulate(values[:-1], out=sums[1:])
    return sums
