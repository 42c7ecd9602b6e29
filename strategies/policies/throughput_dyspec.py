"""DySpec's greedy tree with nodes for as long as they raise the tokens a second of all rows."""

from __future__ import annotations

from collections.abc import Sequence
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

_DOUBT = 1.0
"""Rounds without an accepted node that every depth and value begins with."""


@attrs.frozen
class ThroughputState:
    """Fading sums over the rounds of a row, by depth and value: `DEPTHS * BINS` numbers each.

    Attributes:
        age: rounds, without fading.
        rounds: whose trees could have nodes there.
        nodes: drafted there.
        accepted: of these, the ones on accepted paths.
    """

    age: int = 0
    rounds: tuple[float, ...] = (0.0,) * (DEPTHS * BINS)
    nodes: tuple[float, ...] = (0.0,) * (DEPTHS * BINS)
    accepted: tuple[float, ...] = (0.0,) * (DEPTHS * BINS)


@attrs.frozen
class RoundPlan:
    """How the trees of a round grow.

    Attributes:
        depth: layers; 0 is ordinary decoding.
        bins: slots in this many bins of values are drawn.
    """

    depth: int = 0
    bins: int = 0

    @property
    def floor(self) -> float:
        """The value above which slots are drawn."""
        return FLOORS[self.bins - 1]

    @property
    def wider(self) -> RoundPlan:
        """Returns the plan of a round that tries more."""
        return RoundPlan(min(self.depth + 2, DEPTHS), min(self.bins + 2, BINS))


@attrs.frozen
class ThroughputDySpec(LayeredDySpec, LearningPolicy[ThroughputState], BatchPolicy[RoundPlan]):
    """The trees of `LayeredDySpec`, as deep and wide as pays for the tokens a second of all rows together.

    A pass over many rows is bound by arithmetic, so every node costs time, and only likely ones pay. The
    rounds of all rows have shown how many nodes trees have at each depth with slots of each value, and how
    many of them were accepted. So before a round the expected tokens of every depth and every lowest value
    are known, and the time of its passes by `target_time` and `draft_time`. The best rate wins. At depth 0,
    ordinary decoding, nothing is drafted. Now and then two rows grow more than pays, to see whether it does.

    All of this is known before a token of the round is drawn, so law P holds for each row. The text that a
    seed gives may change with the rows beside it, and its law does not.

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
            raise InvalidInput("A state is no ThroughputState; give the states that this policy left.")
        rounds, nodes, accepted = (
            np.array([getattr(state, name) for state in states]).sum(0).reshape(DEPTHS, BINS)
            for name in ("rounds", "nodes", "accepted")
        )
        nodes, accepted = nodes / np.maximum(rounds, 1e-9), accepted / (rounds + _DOUBT)
        rows = len(states)
        # Of a tree down to a depth, with slots down to a value; its root brings a token too.
        tokens = rows * (1 + accepted.cumsum(0).cumsum(1))
        sizes = rows * (1 + nodes.cumsum(0).cumsum(1))
        opened = rows * np.vstack([np.ones((1, BINS)), nodes.cumsum(1)[:-1]])
        times = _times(self.target_time, sizes) + _times(self.draft_time, opened).cumsum(0)
        rates = tokens / times
        depth, value = divmod(int(rates.argmax()), BINS)
        if rates[depth, value] <= rows / self.target_time(rows):
            return RoundPlan()
        return RoundPlan(depth + 1, value + 1)

    def grow(self, root: int, rng: Randomness, share: RoundPlan | None = None) -> Growing:
        plan = self.plan([self.first_state()]) if share is None else share
        if not plan.depth:
            return attrs.evolve(TreeBuilder(root).finish(), note=(plan, ()))
        largest = LargestValues(self.budget, max(self.threshold, plan.floor))
        tree = yield from self.layers(root, largest, min(plan.depth, self.depth or DEPTHS))
        return attrs.evolve(tree, note=(plan, largest.values(0)))

    def observe(self, state: ThroughputState, outcome: Outcome, tree: TokenTree) -> ThroughputState:
        assert isinstance(tree.note, tuple)
        plan, values = tree.note
        depths = tree.depths.tolist()
        # What the limit cut off the tree are its last levels.
        cells = [(depth - 1) * BINS + _bin(value) for depth, value in zip(depths[1:], values, strict=False)]
        covered = [depth * BINS + value for depth in range(plan.depth) for value in range(plan.bins)]
        rounds, nodes, accepted = list(state.rounds), list(state.nodes), list(state.accepted)
        for sums in (rounds, nodes, accepted):
            for cell in covered:
                sums[cell] *= self.memory
        for cell in covered:
            rounds[cell] += 1
        for cell in cells:
            nodes[cell] += 1
        for node in outcome.path[1:]:
            accepted[cells[node - 1]] += 1
        return ThroughputState(state.age + 1, tuple(rounds), tuple(nodes), tuple(accepted))


def _times(time: PassTime, tokens: Float[np.ndarray, "depths bins"]) -> Float[np.ndarray, "depths bins"]:
    return time.constant + time.linear * tokens + time.quadratic * tokens**2


def _bin(value: float) -> int:
    """Returns the number of the bin of a slot's value."""
    return next((place for place, floor in enumerate(FLOORS) if value > floor), BINS - 1)
