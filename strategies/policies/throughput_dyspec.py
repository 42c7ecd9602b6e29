"""DySpec's greedy tree with nodes for as long as they raise the tokens a second of all rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np
from jaxtyping import Float

from draftwood import (
    BatchPolicy,
    Growing,
    InvalidInput,
    LearningPolicy,
    Outcome,
    Randomness,
    TokenTree,
    TreeBuilder,
)
from draftwood.base.validators import probability
from draftwood.decoding.pass_time import PassTime, as_pass_time
from draftwood.strategies.policies.layered_dyspec import LargestValues, LayeredDySpec

DEPTHS = 8
"""Layers that are counted apart; no tree is deeper."""

FLOORS = (0.98, 0.75, 0.5, 0.35, 0.25, 0.12, 0.06, 0.0)
"""Values that are counted apart are those between two of these."""

BINS = len(FLOORS)

FIRST = 4
"""Rounds at the beginning in which some rows grow more than is known to pay."""

TRIAL = 24
"""Every so many rounds later they do so again, since texts change."""

TRYING = 2
"""Rows that do so at a time."""

_ASSUMED = 2.0
_LIKE = 0.9
"""Before it is tried, a depth is assumed to have 0.9 times the nodes and the success of the one above it, as
if two rounds had shown that."""

SHAPE = (2, DEPTHS, BINS)
"""Numbers that are counted: first children and later ones, by depth, by value."""


@attrs.frozen
class ThroughputState:
    """Fading sums over the rounds of a row, `SHAPE` numbers each, flat.

    Attributes:
        age: rounds, without fading.
        rounds: whose trees could have nodes there.
        nodes: drafted there.
        accepted: of these, the ones on accepted paths.
    """

    age: int = 0
    rounds: tuple[float, ...] = (0.0,) * math.prod(SHAPE)
    nodes: tuple[float, ...] = (0.0,) * math.prod(SHAPE)
    accepted: tuple[float, ...] = (0.0,) * math.prod(SHAPE)


@attrs.frozen
class RoundPlan:
    """The shape that the trees of a round may take.

    Attributes:
        depth: layers; 0 is ordinary decoding.
        first: first children are drawn from slots in this many bins of values.
        later: later children, in this many; none make a chain.
    """

    depth: int = 0
    first: int = 0
    later: int = 0

    @property
    def wider(self) -> RoundPlan:
        """Returns the plan of a round that tries more.

        First children of any value are tried: a flat draft may be right as often as a sure one.
        """
        return RoundPlan(min(self.depth + 2, DEPTHS), BINS, min(self.later + 2, BINS))

    @cached_property
    def cells(self) -> list[int]:
        """Returns where nodes may lie, in a flat array of `SHAPE`."""
        return [
            _cell(kind, depth, value)
            for kind, bins in enumerate((self.first, self.later))
            for depth in range(self.depth)
            for value in range(bins)
        ]


@attrs.frozen
class ThroughputDySpec(LayeredDySpec, LearningPolicy[ThroughputState], BatchPolicy[RoundPlan]):
    """The trees of `LayeredDySpec`, as deep and wide as pays for the tokens a second of all rows together.

    A pass over many rows is bound by arithmetic, so every node costs time, and only likely ones pay. The
    rounds of all rows have shown how many nodes trees have at each depth with slots of each value, and how
    many of them were accepted. So before a round the expected tokens of every depth and every lowest value
    are known, and the time of its passes by `target_time` and `draft_time`. The best rate wins. At depth 0,
    ordinary decoding, nothing is drafted. Now and then two rows grow more than pays, to see whether it does.

    All of this is known before a token of the round is drawn, so law P holds for each row. The text that a
    seed gives may change with the other rows, and its law does not.

    Attributes:
        budget: nodes in a row's tree at most.
        depth: layers at most; None: 8.
        threshold, law, acceptance: as for `LayeredDySpec`; no slot below the threshold is drawn.
        target_time: of a target pass over all rows by its tokens, as a `PassTime` or as text,
            `"constant,linear,quadratic"`.
        draft_time: of a draft call, in the same unit.
        memory: how much a past round counts, round by round.

    Source: draftwood; STree, equations 7 and 8 (arXiv 2505.14969), for the time of trees.
    """

    target_time: PassTime = attrs.field(default=PassTime(1.0, 0.01), converter=as_pass_time)
    draft_time: PassTime = attrs.field(default=PassTime(0.05, 0.0005), converter=as_pass_time)
    memory: float = attrs.field(default=0.97, validator=probability)
    source = "draftwood (STree, equations 7 and 8)"

    def first_state(self) -> ThroughputState:
        return ThroughputState()

    def share(self, states: Sequence[Any]) -> Sequence[RoundPlan]:
        best, rows, clock = self.plan(states), len(states), max(state.age for state in states)
        plans = [best] * rows
        if clock < FIRST or clock % TRIAL == TRIAL - 1:
            for turn in range(TRYING):
                plans[(clock * TRYING + turn) % rows] = best.wider
        return plans

    def plan(self, states: Sequence[ThroughputState]) -> RoundPlan:
        """Returns the plan with the most expected tokens a second for rows with these states."""
        if any(not isinstance(state, ThroughputState) for state in states):
            raise InvalidInput("A state is no ThroughputState; give the states that this policy returned.")
        rounds, nodes, accepted = (
            np.array([getattr(state, name) for state in states]).sum(0).reshape(SHAPE)
            for name in ("rounds", "nodes", "accepted")
        )
        nodes, accepted = _expected(nodes, rounds), _expected(accepted, rounds)
        # One row's tree by depth, bins of first children, and bins of later ones, the last index none.
        nodes, accepted = (_by_plan(of_cells) for of_cells in (nodes, accepted))
        rows = len(states)
        tokens, sizes = rows * (1 + accepted.cumsum(0)), rows * (1 + nodes.cumsum(0))
        opened = rows * np.concatenate([np.ones_like(nodes[:1]), nodes[:-1]])
        times = _times(self.target_time, sizes) + _times(self.draft_time, opened).cumsum(0)
        rates = tokens / times
        depth, first, later = (int(place) for place in np.unravel_index(rates.argmax(), rates.shape))
        if rates[depth, first, later] <= rows / self.target_time(rows):
            return RoundPlan()
        return RoundPlan(depth + 1, first + 1, later)

    def grow(  # type: ignore[override]  # a learner's state is in its share
        self, root: int, rng: Randomness, share: RoundPlan | None = None
    ) -> Growing:
        plan = self.plan([self.first_state()]) if share is None else share
        if not plan.depth:
            return attrs.evolve(TreeBuilder(root).finish(), note=(plan, ()))
        largest = LargestValues(
            self.budget,
            max(self.threshold, FLOORS[plan.first - 1]),
            later=FLOORS[plan.later - 1] if plan.later else 1.0,
        )
        tree = yield from self.layers(root, largest, min(plan.depth, self.depth or DEPTHS))
        return attrs.evolve(tree, note=(plan, largest.slots(0)))

    def observe(self, state: ThroughputState, outcome: Outcome, tree: TokenTree) -> ThroughputState:
        assert isinstance(tree.note, tuple)
        plan, slots = tree.note
        # What the limit cut off the tree are its last levels.
        cells = [_cell(rank > 0, depth - 1, _bin(value)) for value, depth, rank in slots[: len(tree) - 1]]
        rounds, nodes, accepted = list(state.rounds), list(state.nodes), list(state.accepted)
        for sums in (rounds, nodes, accepted):
            for cell in plan.cells:
                sums[cell] *= self.memory
        for cell in plan.cells:
            rounds[cell] += 1
        for cell in cells:
            nodes[cell] += 1
        for node in outcome.path[1:]:
            accepted[cells[node - 1]] += 1
        return ThroughputState(state.age + 1, tuple(rounds), tuple(nodes), tuple(accepted))


def _cell(kind: int, depth: int, value: int) -> int:
    return (kind * DEPTHS + depth) * BINS + value


def _expected(
    sums: Float[np.ndarray, "kinds depths bins"], rounds: Float[np.ndarray, "kinds depths bins"]
) -> Float[np.ndarray, "kinds depths bins"]:
    """Returns means over rounds; a depth that was hardly tried is thought to be much like the one above."""
    means = sums.copy()
    means[:, 0] /= np.maximum(rounds[:, 0], 1e-9)
    for depth in range(1, DEPTHS):
        assumed = _ASSUMED * _LIKE * means[:, depth - 1]
        means[:, depth] = (sums[:, depth] + assumed) / (rounds[:, depth] + _ASSUMED)
    return means


def _by_plan(cells: Float[np.ndarray, "kinds depths bins"]) -> Float[np.ndarray, "depths first later"]:
    """Returns the sums of the cells that every plan covers, at each depth by itself."""
    first, later = cells.cumsum(-1)
    none: Float[np.ndarray, "depths 1"] = np.zeros((DEPTHS, 1))
    sums: Float[np.ndarray, "depths first later"] = first[:, :, None] + np.hstack([none, later])[:, None]
    return sums


def _times(time: PassTime, tokens: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    times: Float[np.ndarray, "..."] = time.constant + time.linear * tokens + time.quadratic * tokens**2
    return times


def _bin(value: float) -> int:
    """Returns the number of the bin of a slot's value."""
    return next((place for place, floor in enumerate(FLOORS) if value > floor), BINS - 1)
