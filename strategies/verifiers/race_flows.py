"""What each token gets at a node whose siblings are judged as one set: its flow and its allowance."""

from __future__ import annotations

from typing import NamedTuple

import attrs
import numpy as np
import torch
from numpy.typing import NDArray

from draftwood.set_laws import LATEST

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

LEFT_OUT = 5e-4
"""About what the tokens may be worth together that are not offered at all."""

SPARE = 5e-4
"""The share of its target that a token forgoes, so that a solution found in a few steps is surely allowed."""

STEPS = 8
"""Steps that look for the allowances; four are usual."""

NEAR = 2e-3
"""An order is good enough whose flow comes so close to its cut."""

_ROUNDING = 1e-12

_LIGHT = 1e-3
"""Odds up to this may be summed up in powers: of six of them nothing is left."""


@attrs.frozen(eq=False)
class SetLaw:
    """The law of `count` siblings as a set, over n tokens.

    A set A has a probability proportional to the product of its odds, times the sum of `outside` over the
    tokens that are not in A and of `inside` over those that are, with `beside` added to it.

    Attributes:
        odds: `[n]`.
        outside, inside: `[n]`.
        beside: of tokens that are not among the n.
        share: about the chance that a token is in the set, by which tokens are ranked, `[n]`.
        count: K.
    """

    odds: Floats
    outside: Floats
    inside: Floats
    beside: float
    share: Floats
    count: int

    @classmethod
    def of_pair(cls, draft: Floats) -> SetLaw:
        """Two tokens without replacement: D(a) D(b) (h(a) + h(b)) with h = 1 / (1 - D)."""
        top = int(draft.argmax())
        left = 1 - draft
        left[top] = draft[:top].sum() + draft[top + 1 :].sum()
        return cls(draft, np.zeros_like(draft), 1 / np.maximum(left, 1e-300), 0.0, draft, 2)

    @classmethod
    def at_arrival(cls, draft: Floats, count: int, time: float) -> SetLaw:
        """`count` tokens drawn without replacement, given the time at which the next one would have come."""
        ripe = np.minimum(draft * time, LATEST)
        odds = torch.from_numpy(ripe).expm1().numpy()  # several times as fast as numpy's
        # What surely came is no mark: beside those that are left, its own rate would be immense.
        outside = np.where(ripe < LATEST, draft, 0.0)
        return cls(odds, outside, np.zeros_like(draft), 0.0, odds / (1 + odds), count)

    @classmethod
    def of_odds(cls, odds: Floats, count: int) -> SetLaw:
        """A set with no mark."""
        nothing = np.zeros_like(odds)
        return cls(odds, nothing, nothing, 1.0, odds / (1 + odds), count)

    def at(self, tokens: Ints | slice) -> SetLaw:
        """The same of `tokens` alone."""
        columns = (self.odds, self.outside, self.inside, self.share)
        odds, outside, inside, share = (column[tokens] for column in columns)
        return SetLaw(odds, outside, inside, self.beside, share, self.count)

    def nothing_behind(self) -> tuple[Floats, Floats]:
        """`sums` of no tokens."""
        empty = np.zeros(0)
        return attrs.evolve(self, odds=empty, outside=empty, inside=empty, share=empty).sums()

    def sums(self) -> tuple[Floats, Floats]:
        """Over its sets of 0 to K tokens: the sums of the products of odds, and the same with the marks.

        By Newton's identities, for light tokens; the marks go along as derivatives.
        """
        product, marked = np.zeros(self.count + 1), np.zeros(self.count + 1)
        product[0] = 1.0
        if len(self.odds):
            power, slope = self.odds, self.inside - self.outside
            powers = list[tuple[float, float]]()
            for j in range(1, min(self.count, 6) + 1):
                powers.append((float(power.sum()), j * float(power @ slope)))
                power = power * self.odds
            for m in range(1, self.count + 1):
                for j, (of_power, of_slope) in enumerate(powers[:m], start=1):
                    sign = (-1) ** (j - 1) / m
                    product[m] += sign * product[m - j] * of_power
                    marked[m] += sign * (marked[m - j] * of_power + product[m - j] * of_slope)
        return product, marked + (self.beside + float(self.outside.sum())) * product


@attrs.frozen(eq=False)
class Flows:
    """What the tokens of a node get.

    Attributes:
        tokens: that are offered, in the order in which they are tried, `[n]`.
        flows: the mass that each receives, `[n]`.
        allowances: of each when it is tried, `[n]`.
    """

    tokens: Ints
    flows: Floats
    allowances: Floats


def flows_of(law: SetLaw, target: Floats) -> Flows:
    """The flows that a set of `law` sends to `target` `[n]`, which sums to at most 1.

    Tokens are ranked by target over share. One after another takes what comes: it was drawn, and nothing
    before it was accepted. That is known for any order that tells nothing of the drawn tokens, and it gets
    the allowance at which no more than its target arrives. Where one that is not served in full stands
    behind one that is, the order is made once more, with all such tokens first.

    Tokens that could add no more than about `LEFT_OUT` in all are not offered. They count as one class at
    the end of the order.
    """
    worth_it = _offered(law, target)
    offered = np.flatnonzero(worth_it)
    # Stable, so that equal ranks leave nothing to the sort.
    with np.errstate(over="ignore"):
        ranked = offered[np.argsort(-target[offered] / law.share[offered], kind="stable")]
    end = law.at(np.flatnonzero(~worth_it)).sums()
    first = _solved(law.at(ranked), target[ranked], end)
    best = Flows(ranked, first.flows, first.allowances)
    if first.flows.sum() < (1 - SPARE) * first.cut - NEAR:
        served = first.allowances < 1
        again = np.concatenate([ranked[~served], ranked[served]])
        second = _solved(law.at(again), target[again], end)
        if second.flows.sum() > first.flows.sum():
            best = Flows(again, second.flows, second.allowances)
    return best


def flows_of_all(tokens: Ints, target: Floats) -> Flows:
    """The flows where `tokens` are all that can be drawn, so that each of them surely is, `[n]` each.

    Args:
        tokens: all of them.
        target: over the vocabulary, with a sum of at most 1.
    """
    flows = target[tokens]
    others = target.sum() - flows.sum() + max(1 - target.sum(), 0)
    left = flows[::-1].cumsum()[::-1] + max(others, 0)
    return Flows(tokens, flows, np.divide(flows, left, out=np.zeros_like(flows), where=left > 0))


def _offered(law: SetLaw, target: Floats) -> NDArray[np.bool_]:
    """Which tokens are worth a look, or too heavy for the class of the others, `[n]`."""
    worth = np.minimum(target, law.share)
    exponent = np.frexp(worth)[1] + 1100
    by_exponent = np.bincount(exponent, worth).cumsum()
    offered: NDArray[np.bool_] = exponent >= int(np.searchsorted(by_exponent, LEFT_OUT))
    others = np.flatnonzero(~offered)
    while len(others):
        odds = law.odds[others]
        heavy = odds > min(_LIGHT, float(odds.sum()) / (8 * law.count))
        if not heavy.any():
            break
        offered[others[heavy]] = True
        others = others[~heavy]
    return offered & (law.share > 0)


class _Solution(NamedTuple):
    flows: Floats
    allowances: Floats
    cut: float


def _solved(law: SetLaw, target: Floats, end: tuple[Floats, Floats]) -> _Solution:
    """Flows and allowances in the order of `law`, and a bound of the flow: a cut of this order.

    The allowances depend on those before them. A step takes the chance that each token comes, given that
    nothing was accepted before it, as the last step left it, and asks for `target` less `SPARE`; that
    settles within a few. Every set of allowances by which no token receives more than its target is
    lossless, so the best of those is taken.
    """
    tables = Tables.of(law, end)
    if not tables.whole > 0:  # a set as unlikely as rounding: nobody is served
        return _Solution(np.zeros_like(target), np.zeros_like(target), 0.0)
    untouched = tables.arriving()
    cut = float((_before(untouched) + target[::-1].cumsum()[::-1]).min(initial=target.sum()))
    over = untouched > target
    scarce = int(over.argmax()) if over.any() else len(target)
    flows, allowances = untouched.copy(), np.ones_like(target)
    passed = float(untouched[:scarce].sum())
    flows[scarce:], allowances[scarce:] = _plenty(tables.behind(scarce), target[scarce:], 1 - passed)
    return _Solution(flows, allowances, min(cut, float(untouched.sum())))


def _plenty(tables: Tables, target: Floats, left: float) -> tuple[Floats, Floats]:
    """Flows and allowances behind the tokens of which all are taken; `left` is the chance that none came.

    Allowances that are larger everywhere make less arrive everywhere. So where no token gets more than its
    target, allowances that take the whole target from what arrives then are larger, and lossless too.
    """
    flows, best = np.zeros_like(target), np.zeros_like(target)
    arriving_at_best = None
    wanted = (1 - SPARE) * target
    likely = tables.law.share * (tables.law.count / max(float(tables.law.share.sum()), 1e-300))
    allowances = _at_most_one(wanted, likely * np.maximum(left - _before(wanted), 0))
    for step in range(STEPS if len(target) else 0):
        arriving = tables.arriving(allowances)
        received = allowances * arriving
        partly = allowances < 1
        if (received <= target).all():
            if received.sum() > flows.sum():
                flows, best, arriving_at_best = received, allowances, arriving
            if received[partly].sum() >= (1 - 2 * SPARE) * target[partly].sum():
                break
        if step >= STEPS // 2 and arriving_at_best is not None:
            allowances = _at_most_one((1 - _ROUNDING) * target, arriving_at_best)
            continue
        planned = np.where(partly, wanted, np.minimum(received, wanted))
        over, planned_over = (np.maximum(left - _before(given), 0) for given in (received, planned))
        allowances = _at_most_one(wanted * over, arriving * planned_over)
    return flows, best


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
        products: of the odds of sets of m tokens behind place j, each row up to a factor, `[K + 1, n + 1]`.
        marked: the same with the marks of all tokens behind the place.
        scales: the logarithms of those factors, `[K + 1]`.
        passed: the marks of the tokens before the first place.
        whole: of all sets, up to the last one of the factors.
    """

    law: SetLaw
    products: Floats
    marked: Floats
    scales: Floats
    passed: float
    whole: float

    @classmethod
    def of(cls, law: SetLaw, end: tuple[Floats, Floats]) -> Tables:
        odds, count = law.odds, law.count
        products, marked = np.empty((2, count + 1, len(odds) + 1))
        scales = np.zeros(count + 1)
        products[0] = 1
        _behind(law.outside, end[1][0], marked[0])
        for m in range(1, count + 1):
            factor = np.exp(-scales[m - 1])
            above, above_marked = products[m - 1, 1:], marked[m - 1, 1:]
            _behind(odds * above, end[0][m] * factor, products[m])
            grown = odds * (above_marked + law.inside * above) + law.outside * products[m, 1:]
            _behind(grown, end[1][m] * factor, marked[m])
            scale = products[m, 0] or 1.0
            products[m] /= scale
            marked[m] /= scale
            scales[m] = scales[m - 1] + np.log(scale)
        return cls(law, products, marked, scales, 0.0, float(marked[-1, 0]))

    def behind(self, place: int) -> Tables:
        """Those of the places from this one on."""
        return attrs.evolve(
            self,
            law=self.law.at(slice(place, None)),
            products=self.products[:, place:],
            marked=self.marked[:, place:],
            passed=float(self.law.outside[:place].sum()),
        )

    def arriving(self, allowances: Floats | None = None) -> Floats:
        """The chance that each token was drawn, and nothing before it was accepted, `[n]`.

        Args:
            allowances: `[n]`; None is 1 of all.
        """
        law, last = self.law, self.law.count - 1
        total, scale = np.zeros_like(law.odds), 0.0
        # Sets of k tokens that stand before the place and failed.
        found, found_marked = np.ones_like(total), self.passed + _before(law.outside)
        failing = None if allowances is None else law.odds * (1 - allowances)
        for k in range(last + 1):
            factor = np.exp(scale + self.scales[last - k] - self.scales[last + 1])
            products, marked = self.products[last - k, 1:], self.marked[last - k, 1:]
            total += factor * (found * (marked + law.inside * products) + found_marked * products)
            if failing is None or k == last:
                break
            more = _before(failing * found)
            if not (most := more[-1]) > 0:
                break
            found_marked = _before(failing * (found_marked + law.inside * found) + law.outside * more) / most
            found, scale = more / most, scale + np.log(most)
        total *= law.odds / self.whole
        return total


def _before(values: Floats) -> Floats:
    """The sums of what stands before each place."""
    sums = np.zeros_like(values)
    np.cumsum(values[:-1], out=sums[1:])
    return sums


def _behind(values: Floats, end: float, out: Floats) -> None:
    """Write into `out` `[n + 1]` the sums from each place on, with `end` behind all."""
    out[-1] = end
    np.cumsum(values[::-1], out=out[-2::-1])
    out[:-1] += end
