"""The flow and the allowance of each token at a node whose siblings are judged as one set."""

from __future__ import annotations

import math
from typing import NamedTuple

import attrs
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.strategies.verifiers.orders import race_sums
from draftwood.strategies.verifiers.orders.race_laws import Columns, LightSums, Pair, SetLaw
from draftwood.strategies.verifiers.orders.race_sums import Floats, Ints, Weights

LEFT_OUT = 5e-4
"""The most that the tokens may receive together that are not offered at all."""

WHOLE = 256
"""A vocabulary of so many tokens is offered whole: to choose among them saves nothing."""

NEAR = 2e-3
"""A flow is good enough that comes so close to its cut."""

LIGHT = 1e-3
"""Odds up to this may be summed up in powers: of six of them nothing is left.

Newton's identities lose digits where one token outweighs the rest of its class: of this size it does so
only where the whole class is next to nothing compared with the sets of other tokens.
"""


@attrs.frozen(eq=False)
class Flows:
    """The flows of a node's tokens.

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
    the last of the siblings takes all that it may, for nobody waits after it, and the others what is left.
    If that is not enough, the order is made once more, with those first that are not served in full.

    Tokens that could add no more than `LEFT_OUT` in all are not offered. They count as one class at the end
    of the order.

    Args:
        law: of the siblings, on the CPU.
        target: on the CPU.
        scale: of `target`, above 0.
    """
    tokens, others = _offered(law, target, scale)
    light = law.light(others)
    wanted = target.numpy()[tokens].astype(np.float64) / scale
    columns = law.at(tokens)
    # Tokens that are neither wanted nor offered come last, as NaN does.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        share, factor = _share(law, columns, light)
        order = _ranked(-wanted / share)
    columns, wanted, tokens = columns.at(order), wanted[order], tokens[order]
    first, cut = _solved(Tables.of(columns, light, law.count, factor), wanted)
    best = Flows(tokens, *first)
    if first.flows.sum() < cut - NEAR:
        served = first.allowances < 1
        again = np.concatenate([np.flatnonzero(~served), np.flatnonzero(served)])
        second, _ = _solved(Tables.of(columns.at(again), light, law.count, factor), wanted[again])
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


def _offered(law: SetLaw, target: Tensor, scale: float) -> tuple[Ints, Weights]:
    """Returns the tokens worth a look, or too heavy for the class of the others, and the others' weights."""
    weights = law.weights.numpy()
    if len(weights) <= WHOLE:
        return np.arange(len(weights)), np.zeros_like(weights)
    return race_sums.split(weights, law.factor, target.numpy(), scale, LEFT_OUT, LIGHT)


def _ranked(values: Floats) -> Ints:
    """Returns the places of `values` in rising order, equal ones in their given order."""
    order: Ints = np.argsort(values)
    ranked = values[order]
    # The plain sort takes a fourth of the time, and leaves open what becomes of equal values.
    return np.argsort(values, kind="stable") if (ranked[1:] == ranked[:-1]).any() else order


def _share(law: SetLaw, columns: Columns, light: LightSums) -> tuple[Floats, float]:
    """About the chance that each token is in the set, `[n]`, up to a factor; by what odds are multiplied.

    No law sees the latter: it keeps sums over sets within the range of numbers.
    """
    odds = columns.odds
    if isinstance(law, Pair):  # where the chance has a closed form
        tried = odds * columns.inside
        return odds * (1 + float(tried.sum()) + light.slopes[0] - tried), 1.0
    # As if tokens were in the set by themselves, at odds by which as many are expected.
    factor = race_sums.factor_of(odds, light.powers[0], law.count)
    share: Floats = factor * odds
    # Tokens that surely came by themselves could take the sums out of range; this makes 0 and K alike.
    surely = float(np.log(share[share > 1]).sum())
    return share / (1 + share), factor * math.exp(-surely / law.count)


class _Solution(NamedTuple):
    """The flows of a node's tokens, as in `Flows`."""

    flows: Floats
    allowances: Floats
    last_allowances: Floats


def _solved(tables: Tables, wanted: Floats) -> tuple[_Solution, float]:
    """Flows and allowances in the order of `tables`, and a bound of the flow: a cut of this order."""
    if not 0 < tables.whole < np.inf:  # a set as unlikely as rounding: nobody gets anything
        nothing = np.zeros_like(wanted)
        return _Solution(nothing, nothing, nothing), 0.0
    cut = race_sums.least_cut(tables.arriving(), wanted)
    solution = tables.served(wanted)
    if solution.flows.sum() < cut - NEAR:
        apart = tables.served(wanted, last_apart=True)
        if apart.flows.sum() > solution.flows.sum():
            solution = apart
    return solution, cut


@attrs.frozen(eq=False)
class Tables:
    """Sums over the sets after each place of an order, or of its end (see `race_sums.sums_after`).

    Attributes:
        law: of the tokens in their order, with odds in a range where no sum leaves that of numbers.
        products, marked: `[n, K]`.
        whole: of all sets.
    """

    law: Columns
    products: Floats
    marked: Floats
    whole: float

    @classmethod
    def of(cls, law: Columns, light: LightSums, count: int, factor: float = 1.0) -> Tables:
        """Returns the tables of K = `count` siblings, with all odds, also of `light`, times `factor`."""
        law = Columns(law.odds * factor, law.outside, law.inside, law.constant)
        end = light.of_sets(count, law.constant, factor)
        return cls(law, *race_sums.sums_after(law.odds, law.outside, law.inside, *end))

    def arriving(self) -> Floats:
        """The chance that each token is drawn and nothing before it, `[n]`."""
        return race_sums.untouched(*self._columns(), self.whole)

    def served(self, wanted: Floats, *, last_apart: bool = False) -> _Solution:
        """Returns what the tokens get that want `wanted` `[n]` (see `race_sums.served`)."""
        return _Solution(*race_sums.served(*self._columns(), self.whole, wanted, last_apart))

    def _columns(self) -> tuple[Floats, Floats, Floats, Floats, Floats]:
        return self.law.odds, self.law.outside, self.law.inside, self.products, self.marked
