"""DySpec's greedy tree of the size and depth that give the most tokens a second over all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
from jaxtyping import Bool, Float

from draftwood import (
    BatchPolicy,
    Growing,
    InvalidInput,
    LearningPolicy,
    Outcome,
    PassCosts,
    Randomness,
    RowView,
    TokenTree,
    TreeBuilder,
)
from draftwood.base.validators import probability
from draftwood.strategies.policies.layered_dyspec import LargestValues, LayeredDySpec

DEPTHS = (1, 2, 3, 4, 5, 6, 8)
"""Limits of layers that are weighed."""

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
"""Limits of nodes that are weighed, of every row's tree without its root."""

SHAPE = (1 + len(DEPTHS), len(SIZES))
"""Numbers that are counted: of chains, then of trees by their depth; by size."""

FIRST_ACCEPTED = 0.7
"""The assumed rate at which a first node is accepted, before any was drafted."""

HOPE = 1.1
"""A layer that was not tried is thought to keep 1.1 times as much as the first one does."""

SIBLINGS = 0.3
"""A node in a single layer is thought to be accepted 0.3 times as often as the one that is worth more."""

ASSUMED = 2.0
"""Rounds that such an assumption counts for."""


@attrs.frozen
class ThroughputState:
    """Fading sums over the rounds of a row, `SHAPE` numbers each, flat.

    A tree shows what smaller ones would have given: its nodes of most value, down to a limit of layers, are
    the tree of that limit, and its first children are a chain. Numbers count nodes between one size and
    the next.

    Attributes:
        rounds: whose trees showed all nodes of that size and depth.
        accepted: nodes in these rounds.
        layers: of the trees of that size and depth in these rounds: draft calls that they took.
    """

    rounds: tuple[float, ...] = (0.0,) * (SHAPE[0] * SHAPE[1])
    accepted: tuple[float, ...] = (0.0,) * (SHAPE[0] * SHAPE[1])
    layers: tuple[float, ...] = (0.0,) * (SHAPE[0] * SHAPE[1])


@attrs.frozen
class TreeLimits:
    """Layers and nodes that every row's tree of a round may have; none are ordinary decoding.

    Attributes:
        depth: layers.
        nodes: without the root.
        chain: whether only first children are drawn.
    """

    depth: int = 0
    nodes: int = 0
    chain: bool = False


@attrs.frozen
class ThroughputDySpec(LayeredDySpec, LearningPolicy[ThroughputState], BatchPolicy[TreeLimits]):
    """The trees of `LayeredDySpec`, as large and deep as pays for the tokens a second of all rows.

    A pass over many rows is bound by arithmetic, so every node costs time and only likely ones pay. A batch
    is padded to its largest tree, so all rows have the same limits. Earlier rounds of all rows have shown how
    many nodes of trees of every size and depth were accepted, and `RowView.costs` says what their passes
    take. The best rate wins; where no tree pays, nothing is drafted. Limits that were not tried for long are
    thought somewhat better than they may be, so that they are tried again.

    All of this is known before a token of the round is drawn, so law P holds for each row. The text that a
    seed gives may change with the other rows, and its law does not.

    Attributes:
        budget: nodes in a row's tree at most.
        depth: layers at most; None: 8.
        threshold, law, acceptance: as for `LayeredDySpec`; no slot below the threshold is drawn.
        memory: how much a past round counts, round by round.

    Source: draftwood; STree, equations 7 and 8 (arXiv 2505.14969), for the time of trees.
    """

    memory: float = attrs.field(default=0.98, validator=probability)
    reads_row = True
    source = "draftwood (STree, equations 7 and 8)"

    def first_state(self) -> ThroughputState:
        return ThroughputState()

    def share(  # type: ignore[override]  # a policy that reads rows takes their views
        self, states: Sequence[Any], views: Sequence[RowView]
    ) -> Sequence[TreeLimits]:
        context = sum(view.length for view in views) / len(views)
        limits = self.limits(states, views[0].known_costs(), context=context)
        # A tree deeper than every row's room would be cut.
        room = max(view.left for view in views) - 1
        return [limits if room >= limits.depth else TreeLimits(room, limits.nodes)] * len(states)

    def limits(
        self, states: Sequence[ThroughputState], costs: PassCosts, *, context: float = 0
    ) -> TreeLimits:
        """Returns the limits with the most expected tokens a second for rows with these states.

        Args:
            states: one per row.
            costs: of passes.
            context: mean tokens of a row.
        """
        if any(not isinstance(state, ThroughputState) for state in states):
            raise InvalidInput("A state is no ThroughputState; give the states that this policy returned.")
        rounds, accepted, layers = (
            np.array([getattr(state, name) for state in states]).sum(0).reshape(SHAPE)
            for name in ("rounds", "accepted", "layers")
        )
        rows = len(states)
        tokens = 1 + np.minimum(
            _expected(accepted, rounds).cumsum(1), np.array([SIZES[-1], *DEPTHS])[:, None]
        )
        calls = _expected_layers(layers, rounds)
        rates = np.where(self._allowed(), tokens / _times(costs, calls, rows=rows, context=context), 0.0)
        place, size = (int(number) for number in np.unravel_index(rates.argmax(), SHAPE))
        plain = costs.target(1, rows=rows, context=context)
        plain += costs.rest_seconds(1, rows=rows, context=context)
        if rates[place, size] * plain <= 1:
            return TreeLimits()
        nodes = SIZES[size]
        return TreeLimits(DEPTHS[place - 1], nodes) if place else TreeLimits(nodes, nodes, chain=True)

    def _allowed(self) -> Bool[np.ndarray, "kinds sizes"]:
        deepest = self.depth or DEPTHS[-1]
        within = [size <= max(self.budget, SIZES[0]) for size in SIZES]
        chains = [fits and size <= deepest for size, fits in zip(SIZES, within, strict=True)]
        return np.array([chains, *([fits and depth <= deepest for fits in within] for depth in DEPTHS)])

    def grow(  # type: ignore[override]  # a learner's state is in its share
        self, root: int, rng: Randomness, share: TreeLimits | None = None
    ) -> Growing:
        limits = TreeLimits(self.depth or DEPTHS[-1], self.budget) if share is None else share
        if not limits.depth:
            return attrs.evolve(TreeBuilder(root).finish(), note=(limits, ()))
        largest = LargestValues(limits.nodes, self.threshold, later=float(limits.chain))
        tree = yield from self.layers(root, largest, limits.depth)
        return attrs.evolve(tree, note=(limits, largest.slots(0)))

    def observe(self, state: ThroughputState, outcome: Outcome, tree: TokenTree) -> ThroughputState:
        assert isinstance(tree.note, tuple)
        limits, slots = tree.note
        rounds, accepted, layers = (
            self.memory * np.array(sums).reshape(SHAPE)
            for sums in (state.rounds, state.accepted, state.layers)
        )
        # What the limit of the text cut off the tree are its last levels.
        slots = slots[: len(tree) - 1]
        nodes = sorted(range(1, len(tree)), key=lambda node: (-slots[node - 1][0], *slots[node - 1][1:]))
        path = set(outcome.path)
        # A tree that is not full has shown all that there is.
        all_shown = len(nodes) < limits.nodes
        for kind, deepest in enumerate((limits.depth, *DEPTHS)):
            if kind and limits.chain:
                shown = nodes[:1]  # also the first node of a tree
            elif kind:
                shown = [node for node in nodes if slots[node - 1][1] <= deepest]
            else:
                shown = _first_children(tree)
            if deepest > limits.depth:
                break
            whole = all_shown and not (kind and limits.chain)
            for column, (least, most) in enumerate(zip((0, *SIZES), SIZES, strict=False)):
                if most <= (limits.nodes if whole else len(shown)):
                    rounds[kind, column] += 1
                    accepted[kind, column] += sum(node in path for node in shown[least:most])
                    layers[kind, column] += max(tree.depths[node] for node in shown[:most]) if shown else 1
        return ThroughputState(tuple(rounds.flat), tuple(accepted.flat), tuple(layers.flat))


def _first_children(tree: TokenTree) -> list[int]:
    """Returns the chain of first children, from the root on."""
    chain, node = list[int](), 0
    while children := tree.children(node):
        node = children[0]
        chain.append(node)
    return chain


def _expected(
    accepted: Float[np.ndarray, "kinds sizes"], rounds: Float[np.ndarray, "kinds sizes"]
) -> Float[np.ndarray, "kinds sizes"]:
    """Returns accepted nodes of a row's round between one size and the next; assumed where untried."""
    widths = np.diff((0, *SIZES))
    means = np.zeros(SHAPE)
    for kind in range(SHAPE[0]):
        for column in range(SHAPE[1]):
            if column == 0:
                assumed = means[0, 0] if kind else FIRST_ACCEPTED
            else:
                before = means[kind, column - 1] / widths[column - 1]
                deeper = min(HOPE * means[0, 0], 1.0) * before * widths[column]
                assumed = deeper if kind != 1 else SIBLINGS * before * widths[column]
                if kind > 1:
                    assumed = max(means[kind - 1, column], deeper)
            means[kind, column] = (accepted[kind, column] + ASSUMED * assumed) / (
                rounds[kind, column] + ASSUMED
            )
    return means


def _expected_layers(
    layers: Float[np.ndarray, "kinds sizes"], rounds: Float[np.ndarray, "kinds sizes"]
) -> Float[np.ndarray, "kinds sizes"]:
    """Returns the layers of trees by their limits; an untried tree may have one more than a smaller one.

    A tree is seldom as deep as its limit: it goes deep where the draft is sure, and else it is wide.
    """
    means = np.zeros(SHAPE)
    means[0] = SIZES
    for kind, deepest in enumerate(DEPTHS, start=1):
        for column, size in enumerate(SIZES):
            before = means[kind, column - 1] if column else 0.0
            assumed = min(before + 1, deepest, size)
            means[kind, column] = (layers[kind, column] + ASSUMED * assumed) / (
                rounds[kind, column] + ASSUMED
            )
    return means


def _times(
    costs: PassCosts, layers: Float[np.ndarray, "kinds sizes"], *, rows: int, context: float
) -> Float[np.ndarray, "kinds sizes"]:
    """Returns the seconds of a round by its limits, whose trees have so many layers."""
    sizes = np.array(SIZES)
    passes = costs.target(1 + sizes, rows=rows, context=context)
    passes = passes + costs.rest_seconds(1 + sizes, rows=rows, context=context)
    first = costs.draft_seconds(1, rows=rows, context=context)
    below = costs.draft_seconds(np.maximum(sizes / layers, 1), rows=rows, context=context)
    times: Float[np.ndarray, "kinds sizes"] = passes + first + (layers - 1) * below
    return times
