"""Trees that grow while another node pays for its time, over all rows."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from draftwood import (
    WAIT,
    BatchPolicy,
    Deterministic,
    Growing,
    InvalidInput,
    LearningPolicy,
    Outcome,
    PassCosts,
    Proposal,
    Randomness,
    RowView,
    Siblings,
    TokenTree,
    TreeBuilder,
    WithoutReplacement,
)
from draftwood.base.validators import at_least, probability
from draftwood.strategies.acceptance_history import DEPTHS, USUAL, AcceptanceHistory, AcceptanceRates, Judged
from draftwood.strategies.laws import SingleLawPolicy, as_law
from draftwood.strategies.policies.dyspec import sampled_or_top

DEEPEST = 8
"""Layers of a tree whose policy has no `depth`."""


OPTIMISM = 0.5
ROUNDS = 3.0
"""Rounds that the assumed rate counts for, before any was reached."""


class RoundBudget:
    """Decides, layer by layer, which nodes of all rows' trees are worth their time."""

    def __init__(
        self, states: Sequence[AcceptanceHistory], costs: PassCosts, *, context: float, depth: int, budget: int
    ) -> None:
        self.rates, self.depth = AcceptanceRates.of(states), depth
        rows = len(states)
        at: dict[str, Any] = {"rows": rows, "context": context}
        sizes = np.arange(1, budget + 2)
        self._passes = costs.target(sizes, **at) + costs.rest_seconds(sizes, **at)
        self._calls = costs.draft_seconds(np.arange(1, budget + 1), **at)
        self._layers = np.arange(1, depth + 1)
        self._by_depth = np.array([[min(of.by_depth[at] + OPTIMISM * of.doubt[at], 1.0) for at in np.minimum(np.arange(depth), DEPTHS - 1)] for of in self.rates])
        self.price = self._rate(states)
        self.sizes = [0] * rows
        self.leaves: list[list[float]] = [[1.0] for _ in states]
        self.layer = 0
        self.drafting = 0.0
        self.width = self._next_width() if depth else 0
        self._prices = self.price * _least_slopes(self._passes)
        self._slots: dict[int, RowSlots] = {}

    def _rate(self, states) -> float:
        """Returns the tokens a second that were reached; no less than ordinary decoding's."""
        plain = len(states) / self._passes[0]
        chains = self._layers[self._layers < len(self._passes)]
        tokens = 1 + np.cumsum(USUAL[0] ** chains)
        rounds = (self._passes[chains] + chains * self._calls[0]) / self._passes[0]
        guess = (tokens / rounds).max(initial=1.0)
        found = (sum(s.tokens for s in states) + ROUNDS * guess) / (sum(s.rounds for s in states) + ROUNDS)
        return float(plain * max(found, 1.0))

    @property
    def rounds(self) -> float:
        return float((self._passes[max(self.sizes)] + self.drafting) / self._passes[0])

    def offer(self, row: int, slots: RowSlots) -> None:
        self._slots[row] = slots

    def fill(self) -> None:
        """Draw nodes of the layer, column by column: one more node in every row that has a slot."""
        offered, self._slots = self._slots, {}
        paid, gained = max(self.sizes), {row: 0 for row in offered}
        while offered:
            for row, slots in offered.items():
                while self.sizes[row] < paid and slots.draw():
                    self.sizes[row] += 1
            gain = sum(slots.value for slots in offered.values())
            if gain <= self._prices[paid] or not paid < len(self._passes) - 1:
                break
            paid += 1
        for row in range(len(self.sizes)):
            self.leaves[row] = sorted((drawn.worth for drawn in offered[row].drawn), reverse=True) if row in offered else []

    def next_width(self, layer: int) -> int:
        """Returns how many leaves of each row are opened for the layer; 0 where it does not pay."""
        if layer > self.layer:
            self.fill()
            self.drafting += float(self._calls[min(self.width, max(map(len, self._opened))) - 1])
            self.layer = layer
            self.width = self._next_width() if layer < self.depth else 0
        return self.width

    def _next_width(self) -> int:
        self._opened = self.leaves
        size = max(self.sizes)
        room = len(self._passes) - 1 - size
        most = min(max(map(len, self.leaves)), room)
        if most < 1:
            return 0
        left = self.depth - self.layer
        gains = np.zeros((most, left))
        for leaves, rates in zip(self.leaves, self._by_depth, strict=True):
            sums = np.zeros(most)
            sums[: len(leaves)] = leaves[:most]
            gains += np.cumsum(sums)[:, None] * np.cumsum(np.cumprod(rates[self.layer:]))[None]
        widths = np.arange(1, most + 1)[:, None]
        nodes = widths * self._layers[None, :left]
        fits = size + nodes < len(self._passes)
        times = self._passes[np.where(fits, size + nodes, 0)] - self._passes[size]
        times = times + self._layers[None, :left] * self._calls[widths - 1]
        net = np.where(fits, gains - self.price * times, -np.inf)
        best = int(net.argmax())
        return best // left + 1 if net.flat[best] > 0 else 0


@attrs.frozen
class ThroughputDySpec(SingleLawPolicy, LearningPolicy[AcceptanceHistory], BatchPolicy[Any]):
    budget: int = attrs.field(default=32, validator=at_least(1))
    depth: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(1)))
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law, validator=sampled_or_top)
    memory: float = attrs.field(default=0.98, validator=probability)
    reads_row = True
    source = "draftwood (STree, equations 7 and 8)"

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.law is WithoutReplacement

    def first_state(self) -> AcceptanceHistory:
        return AcceptanceHistory()

    def share(self, states, views):
        context = sum(view.length for view in views) / len(views)
        room = max(view.left for view in views) - 1
        depth = min(self.depth or DEEPEST, room)
        budget = RoundBudget(
            states, views[0].known_costs(), context=context, depth=depth, budget=self.budget
        )
        return [(budget, row) for row in range(len(states))]

    def grow(self, root: int, rng: Randomness, share=None) -> Growing:
        budget, row = share
        rates = budget.rates[row]
        tree, chances = TreeBuilder(root), [1.0]
        note = []
        level = [0]
        layer = 0
        while width := budget.next_width(layer):
            layer += 1
            if not level:
                yield WAIT
                continue
            level.sort(key=lambda node: -chances[node])
            level = sorted(level[:width])
            drawn = yield tree.open(level, self.law, ahead=self.budget)
            slots = RowSlots([NextSlot(siblings, rates, chances[node]) for node, siblings in zip(level, drawn, strict=True)])
            budget.offer(row, slots)
            if len(budget.rates) > 1:
                yield WAIT
            budget.next_width(layer)
            above, level = level, []
            for one in sorted(slots.drawn, key=lambda one: (one.index, one.rank)):
                siblings = drawn[one.index]
                child = tree.add(above[one.index], siblings.tokens[one.rank])
                tree.siblings[above[one.index]] = siblings
                chances.append(one.worth)
                note.append(one.chance)
                level.append(child)
        return attrs.evolve(tree.finish(), note=(budget.rounds, *note))

    def observe(self, state: AcceptanceHistory, outcome: Outcome, tree: TokenTree) -> AcceptanceHistory:
        return state.after(_judged(tree, outcome), tokens=len(outcome.path), rounds=tree.note[0], memory=self.memory)


def _judged(tree: TokenTree, outcome: Outcome) -> Iterator[Judged]:
    path = set(outcome.path)
    for node in outcome.path:
        for rank, child in enumerate(tree.children(node)):
            yield Judged(tree.depths[child], rank, tree.note[child], child in path)
            if child in path:
                break


@attrs.frozen
class Drawn:
    index: int
    rank: int
    worth: float
    chance: float


class RowSlots:
    """The slots of a row's layer, the one worth most first."""

    def __init__(self, slots) -> None:
        self._slots, self.drawn = slots, []
        self._waiting = [(-slot.value, 0, index) for index, slot in enumerate(slots)]
        heapq.heapify(self._waiting)

    @property
    def value(self) -> float:
        return -self._waiting[0][0] if self._waiting else 0.0

    def draw(self) -> bool:
        while self.value > 0:
            _, rank, index = self._waiting[0]
            slot = self._slots[index]
            if slot.draw():
                heapq.heapreplace(self._waiting, (-slot.value, rank + 1, index))
                self.drawn.append(Drawn(index, rank, slot.worth, slot.chance))
                return True
            heapq.heappop(self._waiting)
        return False


def _least_slopes(times):
    sizes = np.arange(len(times))
    ahead = sizes[None] - sizes[:, None]
    slopes = np.where(ahead > 0, (times[None] - times[:, None]) / np.where(ahead > 0, ahead, 1), np.inf)
    return np.maximum(slopes.min(1), 0)


class NextSlot:
    __slots__ = ("siblings", "value", "worth", "chance", "_rates", "_reached", "_left", "_known")

    def __init__(self, siblings: Siblings, rates: AcceptanceRates, reached: float) -> None:
        self.siblings, self._rates, self._reached = siblings, rates, reached
        self._known = siblings.law is Deterministic
        self._left = 1.0
        self._price()

    def _price(self) -> None:
        rank = len(self.siblings.tokens)
        if self.siblings.weight <= 0:
            self.value = 0.0
        elif self._known:
            self.value = self._reached * self._rates(rank, min(self.siblings.weight / self._left, 1.0))
        else:
            self.value = self._reached * self._rates.unknown(rank)

    def draw(self) -> bool:
        rank = len(self.siblings.tokens)
        if not self.siblings.draw():
            self.value = 0.0
            return False
        drawn = self.siblings.chances[-1]
        self.chance = min(drawn / max(self._left, 1e-9), 1.0)
        self._left = max(self._left - drawn, 1e-9)
        rate = self._rates(rank, self.chance)
        self.worth = self._reached * rate
        self._reached *= 1 - rate
        self._price()
        return True
