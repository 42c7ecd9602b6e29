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
class SiblingSet:
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

    def at(self, places: Tensor) -> SiblingSet:
        """Returns the set in another order."""
        columns = {name: getattr(self, name)[places] for name in ("odds", "outside", "inside", "target")}
        return replace(self, **columns)


@dataclass(frozen=True, eq=False)
class Flows:
    """The flows of a node's offered tokens, in the order in which they are tried, `[n]` each.

    The last allowance is of a token before which all other siblings were tried.
    """

    tokens: Tensor
    flows: Tensor
    allowances: Tensor
    last_allowances: Tensor


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
    law = SiblingSet(odds * norm, outside, inside, wanted * allowance, products * scale, marked * scale)
    key = torch.where(share > 0, wanted / share, torch.where(wanted > 0, math.inf, -1.0))
    order = key.sort(descending=True, stable=True).indices
    *best, cut = solved(law.at(order))
    if float(best[0].sum()) < (1 - SPARE) * cut - NEAR:
        again = torch.cat([(best[1] >= 1).nonzero()[:, 0], (best[1] < 1).nonzero()[:, 0]])
        *second, _ = solved(law.at(order[again]))
        if second[0].sum() > best[0].sum():
            order, best = order[again], second
    return Flows(tokens[order], *best)


def columns(weights: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Odds, and marks outside and inside, of tokens with these weights."""
    nothing = torch.zeros_like(weights)
    if count == 2:
        return weights, nothing, 1 / (1 - weights).clamp(min=1e-300)
    return weights.clamp(max=LATEST).expm1(), torch.where(weights < LATEST, weights, 0.0), nothing


def expected(odds: Tensor, light: float, count: int) -> tuple[float, Tensor]:
    """Returns the factor of odds that makes `count` tokens expected, and each token's probability then."""
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
    """Returns the sum of the terms before each place."""
    return torch.nn.functional.pad(terms.cumsum(0), (1, 0))[:-1]


def behind(terms: Tensor) -> Tensor:
    """Returns the sum of the terms after each place."""
    return before(terms.flip(0)).flip(0)


def tables(law: SiblingSet) -> tuple[list[Tensor], list[Tensor], float]:
    """Returns sums over sets of 0 to K - 1 tokens after each place, without and with marks, and of all K."""
    products, marked = [torch.ones_like(law.odds)], [law.marked[0] + behind(law.outside)]
    whole = 0.0
    for m in range(1, law.count + 1):
        terms = law.odds * products[-1]
        above = law.products[m] + behind(terms)
        marks = law.odds * (marked[-1] + law.inside * products[-1]) + law.outside * above
        whole = float(law.marked[m] + marks.sum())
        products, marked = [*products, above], [*marked, law.marked[m] + behind(marks)]
    return products, marked, whole


def arriving(
    law: SiblingSet, allowances: Tensor, of: tuple[list[Tensor], list[Tensor], float]
) -> tuple[Tensor, Tensor]:
    """The chance that each token was drawn and nothing before it accepted: not as the last, and as that."""
    products, marked_behind, whole = of
    failing = law.odds * (1 - allowances)
    found, marked = torch.ones_like(failing), before(law.outside)
    total, as_last = torch.zeros_like(failing), torch.zeros_like(failing)
    for k in range(law.count):
        m = law.count - 1 - k
        total += as_last
        as_last = marked * products[m] + found * (marked_behind[m] + law.inside * products[m])
        next_found = before(failing * found)
        marked = before(failing * (marked + law.inside * found) + law.outside * next_found)
        found = next_found
    return total * law.odds / whole, as_last * law.odds / whole


def at_most_one(wanted: Tensor, arrives: Tensor) -> Tensor:
    """The allowances by which `wanted` of `arrives` is accepted, or all of it."""
    return torch.where(arrives > wanted, wanted / arrives, 1.0)


def solved(law: SiblingSet) -> tuple[Tensor, Tensor, Tensor, float]:
    """Flows, allowances and last allowances in the order of `law`, and a cut of this order."""
    of = tables(law)
    earlier, last = arriving(law, torch.ones_like(law.odds), of)
    flows, target = earlier + last, law.target
    cut = min(float((before(flows) + target + behind(target)).min()), float(target.sum()), float(flows.sum()))
    over = (flows > target).nonzero()
    plenty = torch.arange(len(target)) >= (int(over[0]) if len(over) else len(target))
    found = settled(law, of, flows, plenty, last_apart=False)
    if float(found[0].sum()) < (1 - SPARE) * cut - NEAR:
        apart = settled(law, of, flows, plenty, last_apart=True)
        if apart[0].sum() > found[0].sum():
            found = apart
    return *found, cut


def settled(
    law: SiblingSet,
    of: tuple[list[Tensor], list[Tensor], float],
    flows: Tensor,
    plenty: Tensor,
    *,
    last_apart: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns what the tokens get where all arrivals of tokens that are not `plenty` are accepted."""
    target, left = law.target, 1 - flows[~plenty].sum()
    wanted, likely = torch.where(plenty, (1 - SPARE) * target, 0.0), law.odds / (1 + law.odds)
    likely *= law.count / max(float(likely[plenty].sum()), 1e-300)
    allowances = at_most_one(wanted, likely * (left - before(wanted)).clamp(min=0))
    best = last_best = (~plenty).double()
    best_flows, at_best = torch.where(plenty, 0.0, flows), None
    for step in range(STEPS):
        allowances = torch.where(plenty, allowances, 1.0)
        earlier, last = arriving(law, allowances, of)
        last_allowances = at_most_one(wanted, last) if last_apart else allowances
        got = torch.where(plenty, allowances * earlier + last_allowances * last, 0.0)
        partly = plenty & (allowances < 1)
        if bool((got <= target)[plenty].all()):
            if got.sum() > best_flows[plenty].sum():
                best, last_best = allowances, torch.where(plenty, last_allowances, 1.0)
                best_flows, at_best = torch.where(plenty, got, flows), (earlier, last)
            if got[partly].sum() >= (1 - 2 * SPARE) * target[partly].sum():
                break
        if step >= STEPS // 2 and at_best is not None:
            allowances = allowed((1 - ROUNDING) * target, *at_best, last_apart=last_apart)
            continue
        planned = torch.where(partly, wanted, torch.minimum(got, wanted))
        more, planned_more = ((left - before(one)).clamp(min=0) for one in (got, planned))
        allowances = allowed(
            wanted * more, earlier * planned_more, last * planned_more, last_apart=last_apart
        )
    return best_flows, best, last_best


def allowed(wanted: Tensor, earlier: Tensor, last: Tensor, *, last_apart: bool) -> Tensor:
    """Returns the allowances that accept `wanted`; with `last_apart`, for a token that is not tried last."""
    if not last_apart:
        return at_most_one(wanted, earlier + last)
    return at_most_one((wanted - torch.minimum(wanted, last)).clamp(min=0), earlier)
