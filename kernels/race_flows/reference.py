"""The flows of one node in plain float64 PyTorch; README.md has the derivation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from draftwood.kernels.race_flows.offered import beside_likeliest, columns_for, offered

LATEST, SPARE, NEAR, ROUNDING, STEPS = 36.0, 2e-4, 2e-3, 1e-12, 8
"""As in the kernel."""


@dataclass(frozen=True, eq=False)
class Law:
    """The law of K siblings as a set, over the offered tokens in some order, float64 `[n]` each.

    Attributes:
        odds: a set is as likely as their product, times the sum of `outside` over tokens that are not in it
            and of `inside` over those that are.
        outside, inside: marks.
        target: times the node's allowance.
        products: sums over the sets of 0 to K tokens of the class at the end, `[K + 1]`.
        marked: the same with the marks of all of the class.
    """

    odds: Tensor
    outside: Tensor
    inside: Tensor
    target: Tensor
    products: Tensor
    marked: Tensor

    @property
    def count(self) -> int:
        """K."""
        return len(self.products) - 1

    def at(self, places: Tensor) -> Law:
        """The same in another order."""
        columns = {name: getattr(self, name)[places] for name in ("odds", "outside", "inside", "target")}
        return replace(self, **columns)


@dataclass(frozen=True, eq=False)
class Flows:
    """What the offered tokens of a node get, in the order in which they are tried, `[n]` each."""

    tokens: Tensor
    flows: Tensor
    allowances: Tensor


def flows_of(draft: Tensor, target: Tensor, *, factor: Tensor, count: int, allowance: float) -> Flows:
    """Flows and allowances at a node.

    Args:
        draft, target: fp32 `[vocab]`.
        factor: float64, as `clock` gives it.
        count: of siblings, 2 or more.
        allowance: of the node.
    """
    tokens, others = offered(draft[None], target[None], factor[None], columns_for(len(draft)))
    tokens = tokens[0][tokens[0] >= 0]
    weights = draft[tokens].double() * factor
    odds, outside, inside = columns(weights, count)
    inside[weights > 0.5] = 1 / (beside_likeliest(draft[None]) * factor) if count == 2 else 0
    light, light_outside, light_inside = columns(
        torch.zeros(1).double() if others is None else others[0].double() * factor, count
    )
    powers = [light**j for j in range(count + 1)]
    norm, share = 1.0, odds
    if count == 2:
        tried = odds * inside
        share = odds * (1 + tried.sum() + (light * light_inside).sum() - tried)
    else:
        norm, share = expected(odds, float(light.sum()), count)
    products, marked = sets_of(
        [float(power.sum()) for power in powers],
        [float((power * (light_inside - light_outside)).sum()) for power in powers],
        float(light_outside.sum()),
    )
    scale = torch.tensor([norm**m for m in range(count + 1)], dtype=torch.float64)
    wanted = target[tokens].double()
    law = Law(odds * norm, outside, inside, wanted * allowance, products * scale, marked * scale)
    key = torch.where(share > 0, wanted / share, torch.where(wanted > 0, math.inf, -1.0))
    order = key.sort(descending=True, stable=True).indices
    flows, allowances, cut = solved(law.at(order), norm)
    if float(flows.sum()) < (1 - SPARE) * cut - NEAR:
        again = torch.cat([(allowances >= 1).nonzero()[:, 0], (allowances < 1).nonzero()[:, 0]])
        second_flows, second, _ = solved(law.at(order[again]), norm)
        if second_flows.sum() > flows.sum():
            order, flows, allowances = order[again], second_flows, second
    return Flows(tokens[order], flows, allowances)


def columns(weights: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Odds, and marks outside and inside, of tokens with these weights."""
    nothing = torch.zeros_like(weights)
    if count == 2:
        return weights, nothing, 1 / (1 - weights).clamp(min=1e-300)
    return weights.clamp(max=LATEST).expm1(), torch.where(weights < LATEST, weights, 0.0), nothing


def expected(odds: Tensor, light: float, count: int) -> tuple[float, Tensor]:
    """By what odds are multiplied so that `count` tokens are expected, and each one's chance then."""
    norm, following, share = 1.0, 1.0, odds
    for _ in range(6):
        norm = following
        share = norm * odds / (1 + norm * odds)
        many = float(share.sum()) + norm * light
        if abs(many - count) <= 0.02 * count:
            break
        slope = float((share * (1 - share)).sum()) + norm * light
        following = norm * math.exp(min(max((count - many) / max(slope, 1e-3), -3), 3))
    return norm, share


def sets_of(powers: list[float], slopes: list[float], outside: float) -> tuple[Tensor, Tensor]:
    """Sums over the sets of 0 to K light tokens by Newton's identities; marks go along as derivatives."""
    product, marked = [1.0], [0.0]
    for m in range(1, len(powers)):
        terms = [((-1) ** (j - 1) / m, product[m - j], marked[m - j], j) for j in range(1, m + 1)]
        product.append(sum(sign * of * powers[j] for sign, of, _, j in terms))
        marked.append(sum(sign * (mark * powers[j] + j * of * slopes[j]) for sign, of, mark, j in terms))
    products = torch.tensor(product, dtype=torch.float64)
    return products, torch.tensor(marked, dtype=torch.float64) + outside * products


def before(terms: Tensor) -> Tensor:
    """The sums of what stands before each place."""
    return torch.nn.functional.pad(terms.cumsum(0), (1, 0))[:-1]


def behind(terms: Tensor) -> Tensor:
    """The sums of what stands behind each place."""
    return before(terms.flip(0)).flip(0)


def tables(law: Law) -> tuple[list[Tensor], list[Tensor], float]:
    """Sums over the sets of 0 to K - 1 tokens behind each place, with marks too; that over all sets of K."""
    products, marked = [torch.ones_like(law.odds)], [law.marked[0] + behind(law.outside)]
    whole = 0.0
    for m in range(1, law.count + 1):
        terms = law.odds * products[-1]
        above = law.products[m] + behind(terms)
        marks = law.odds * (marked[-1] + law.inside * products[-1]) + law.outside * above
        whole = float(law.marked[m] + marks.sum())
        products, marked = [*products, above], [*marked, law.marked[m] + behind(marks)]
    return products, marked, whole


def arriving(law: Law, allowances: Tensor, of: tuple[list[Tensor], list[Tensor], float]) -> Tensor:
    """The chance that each token was drawn and nothing before it was accepted."""
    products, marked_behind, whole = of
    failing = law.odds * (1 - allowances)
    found, marked = torch.ones_like(failing), before(law.outside)
    total = torch.zeros_like(failing)
    for k in range(law.count):
        m = law.count - 1 - k
        total += marked * products[m] + found * (marked_behind[m] + law.inside * products[m])
        next_found = before(failing * found)
        marked = before(failing * (marked + law.inside * found) + law.outside * next_found)
        found = next_found
    return total * law.odds / whole


def at_most_one(wanted: Tensor, arrives: Tensor) -> Tensor:
    """The allowances by which `wanted` of `arrives` is accepted, or all of it."""
    return torch.where(arrives > wanted, wanted / arrives, 1.0)


def solved(law: Law, norm: float) -> tuple[Tensor, Tensor, float]:
    """Flows and allowances in the order of `law`, and a cut of this order."""
    of = tables(law)
    flows, target = arriving(law, torch.ones_like(law.odds), of), law.target
    cut = min(float((before(flows) + target + behind(target)).min()), float(target.sum()), float(flows.sum()))
    over = (flows > target).nonzero()
    plenty = torch.arange(len(target)) >= (int(over[0]) if len(over) else len(target))
    left = 1 - flows[~plenty].sum()
    wanted, raw = torch.where(plenty, (1 - SPARE) * target, 0.0), law.odds / norm
    likely = raw / (1 + raw)
    likely *= law.count / max(float(likely[plenty].sum()), 1e-300)
    allowances = at_most_one(wanted, likely * (left - before(wanted)).clamp(min=0))
    best, best_flows, at_best = (~plenty).double(), torch.where(plenty, 0.0, flows), None
    for step in range(STEPS):
        allowances = torch.where(plenty, allowances, 1.0)
        arrives = arriving(law, allowances, of)
        got, partly = torch.where(plenty, allowances * arrives, 0.0), plenty & (allowances < 1)
        if bool((got <= target)[plenty].all()):
            if got.sum() > best_flows[plenty].sum():
                best, at_best = allowances, arrives
                best_flows = torch.where(plenty, got, flows)
            if got[partly].sum() >= (1 - 2 * SPARE) * target[partly].sum():
                break
        if step >= STEPS // 2 and at_best is not None:
            allowances = at_most_one((1 - ROUNDING) * target, at_best)
            continue
        planned = torch.where(partly, wanted, torch.minimum(got, wanted))
        more, planned_more = ((left - before(one)).clamp(min=0) for one in (got, planned))
        allowances = at_most_one(wanted * more, arrives * planned_more)
    return best_flows, best, cut
