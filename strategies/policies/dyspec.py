"""DySpec's greedy tree: always draw where the draft expects the most."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import attrs

from draftwood import (
    Deterministic,
    Growing,
    Proposal,
    Randomness,
    Siblings,
    TreeBuilder,
    WithoutReplacement,
)
from draftwood.base.errors import InvalidInput
from draftwood.base.validators import at_least
from draftwood.strategies.acceptance_vectors import (
    as_acceptance,
    certainty,
    conditional_acceptance,
    validate_acceptance,
)
from draftwood.strategies.laws import SingleLawPolicy, as_law


def sampled_or_top(policy: object, __: object, law: type[Proposal]) -> None:
    if law not in (WithoutReplacement, Deterministic):
        raise InvalidInput(
            f"The trees of {type(policy).__name__} cannot be drawn by {law.__name__}; use "
            "'without-replacement' or 'top-k'."
        )


def sampled_alone(policy: GreedyTree, field: attrs.Attribute[Any], values: tuple[float, ...]) -> None:
    if values:
        validate_acceptance(policy, field, values)
        if policy.law is not WithoutReplacement:
            raise InvalidInput(
                "acceptance is an estimate for drawn children; leave it out, or draw without replacement."
            )


class GreedyTree(SingleLawPolicy):
    """Drawn where the most is expected, so what a draw brought decides where the next one is."""

    law: type[Proposal]
    acceptance: tuple[float, ...]

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.law is WithoutReplacement

    def next_child(self, siblings: Siblings) -> NextChild:
        """The slots of a node that was opened."""
        if not self.acceptance:
            return NextChild(siblings)
        return MeasuredNextChild(siblings, tuple(conditional_acceptance(self.acceptance)))


@attrs.frozen
class DySpec(GreedyTree):
    """`budget` nodes, each drawn where the draft's estimate of its acceptance is highest.

    A slot is room for the next child of a node; its value is the draft's probability that the
    verifier comes to judge it: that of the path, times the chance that the earlier siblings fail. The
    value is known before the token is drawn, so keeping the best slots biases nothing. With law
    `"top-k"` a slot takes the most likely token left instead of drawing one, and is worth that token's
    own probability: the tree then holds the `budget` most likely paths, which is best at temperature 0.

    The estimate takes a child for accepted as often as the draft draws it. A draft that was distilled to
    guess well may not bear that out: the zoo's pair accepts about 40 % of the first children drawn with a
    probability below 0.9, however small it was, so that trees by these values are too wide. With a
    measured `acceptance` the k-th child, drawn with probability p from what its siblings left, is expected
    to be accepted with c + (1 - c) p¹⁶: c, the measured chance of a k-th child whose siblings failed, unless
    the draft is all but certain. (Of the powers of 2, 16 and 32 describe that pair best at temperature 0.6,
    8 and 16 at 1: `python -m benchmarks certainty`.)

    Attributes:
        budget: nodes in the tree.
        law: how children are drawn.
        acceptance: the chance of the first, second, ... child to be the accepted one, as for `Sequoia`;
            none is the paper's estimate, p itself.

    Source: DySpec, algorithm 1 (arXiv 2410.11744), with its lines 6 and 7 exchanged: a token is drawn
    before it is added. The draft is asked for all waiting nodes whenever one is needed; the tree is the
    same, with fewer calls than nodes.
    """

    budget: int = attrs.field(default=32, validator=at_least(1))
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law, validator=sampled_or_top)
    acceptance: tuple[float, ...] = attrs.field(default=(), converter=as_acceptance, validator=sampled_alone)
    source = "DySpec, algorithm 1"

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree = TreeBuilder(root)
        path_probs = [1.0]  # the draft's probability of the path to every node
        opened: dict[int, NextChild] = {}
        waiting = [0]  # nodes that were not opened
        # (-value, node) of every node's next slot; nodes are numbered in drawn order, which breaks ties.
        # The value may be an upper bound: a slot is worth at most the path to its node.
        slots = [(-1.0, 0)]
        while slots and len(tree) <= self.budget:
            bound, node = slots[0]
            if node not in opened:
                drawn = yield tree.open(waiting, self.law, ahead=self.budget)
                opened.update(zip(waiting, map(self.next_child, drawn), strict=True))
                waiting = []
            of_node = opened[node]
            value = -path_probs[node] * of_node.value
            if value > bound:
                heapq.heapreplace(slots, (value, node))
                continue
            heapq.heappop(slots)
            if value < 0 and of_node.draw():
                path_probs.append(path_probs[node] * of_node.worth)
                waiting.append(tree.add_last(node, of_node.siblings))
                heapq.heappush(slots, (-path_probs[-1], waiting[-1]))
                heapq.heappush(slots, (-path_probs[node] * of_node.value, node))
        return tree.finish()


class NextChild:
    """The next child that one node may have, and after it the one after that.

    Attributes:
        siblings: the children that were drawn.
        value: of the next child, relative to the path to the node; 0 when no token is left.
        worth: what the children of the last one start from, relative to the path to the node.
    """

    __slots__ = ("siblings", "value", "worth")

    def __init__(self, siblings: Siblings) -> None:
        self.siblings, self.value, self.worth = siblings, siblings.weight, 0.0

    def draw(self) -> bool:
        """Draw the next child; whether there is one."""
        if not self.siblings.draw():
            self.value = 0.0
            return False
        self.value, self.worth = self.siblings.weight, self.siblings.chances[-1]
        return True


class MeasuredNextChild(NextChild):
    """Worth what measured chances of acceptance promise."""

    __slots__ = ("_chances", "_slot")

    def __init__(self, siblings: Siblings, chances: Sequence[float]) -> None:
        """`chances`: of the first, second, ... child, once its earlier siblings have failed."""
        super().__init__(siblings)
        self._chances, self._slot = chances, min(siblings.weight, 1.0)

    def draw(self) -> bool:
        rank, left = len(self.siblings.tokens), self.siblings.weight
        if not super().draw():
            return False
        measured = self._chances[min(rank, len(self._chances) - 1)]
        accepted = measured + (1 - measured) * certainty(min(self.worth / left, 1.0))
        self.worth, self._slot = self._slot * accepted, self._slot * (1 - accepted)
        self.value = self._slot if self.siblings.weight > 0 else 0.0
        return True
