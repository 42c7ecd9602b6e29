"""Trees that grow where and while another node pays for its time, over all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from draftwood import (
    ArrayPolicy,
    Deterministic,
    GrowingRows,
    InvalidInput,
    LearningPolicy,
    Outcome,
    PassCosts,
    PassTable,
    Proposal,
    RowTrees,
    RowView,
    TokenTree,
    WithoutReplacement,
)
from draftwood.base.validators import at_least, probability
from draftwood.strategies.acceptance_history import (
    DRAWN,
    LIKELIEST,
    AcceptanceHistory,
    AssumedRates,
    judged_children,
)
from draftwood.strategies.laws import SingleLawPolicy, as_law
from draftwood.strategies.paying_nodes import PayingNodes
from draftwood.strategies.policies.dyspec import sampled_or_top

DEPTH = 8
"""Layers of a tree whose policy has no `depth`."""

SAMPLED = 4
"""Children of a node that are sampled at most, since all of them are drawn before any is chosen."""

ALL_ALIKE = PassCosts(PassTable([(1, 1, 0, 1.0)]))
"""Costs by which every pass takes as long, so that all nodes pay."""

TRIED_AGAIN = 0, 4, 8, 16
"""Rounds, of every 32 without a draft, in which it is asked again whether one pays."""


@attrs.frozen
class ThroughputDySpec(ArrayPolicy, SingleLawPolicy, LearningPolicy[AcceptanceHistory]):
    """Trees that grow layer by layer, where and while that adds to the tokens a second of all rows.

    A pass over many rows is bound by arithmetic, so every node costs time and only likely ones pay. The row's
    earlier rounds have shown how often children were accepted, by the draft's probability of them and
    their rank among siblings. The product along the path is what a node adds in expectation, and
    `RowView.costs` says what time it adds. It is drawn where that brings more than the rate
    that was reached so far; another layer must pay for its draft call as well. Where not even a first node
    pays, nothing is drafted; it is tried again from time to time, the less often the more was seen.

    All that decides on a node is known before its token is drawn, and no node is dropped, so law P holds
    for all rows jointly. The text that a seed gives may change with the other rows, and its law does not.

    Attributes:
        budget: nodes in a row's tree at most.
        depth: layers at most; None: 8.
        law: how children are drawn.
        memory: how much a past round counts, round by round.

    Source: draftwood; Dinkelbach 1967 for the price of a second.
    """

    budget: int = attrs.field(default=32, validator=at_least(1))
    depth: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(1)))
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law, validator=sampled_or_top)
    memory: float = attrs.field(default=0.98, validator=probability)
    reads_row = True
    source = "draftwood (Dinkelbach 1967)"

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.law is WithoutReplacement

    @property
    def _assumed(self) -> AssumedRates:
        return DRAWN if self.adaptive else LIKELIEST

    def first_state(self) -> AcceptanceHistory:
        return AcceptanceHistory()

    def grow_together(
        self, roots: Sequence[int], states: Sequence[Any], views: Sequence[RowView | None]
    ) -> GrowingRows:
        known = [view for view in views if view is not None]
        if set(map(type, states)) != {AcceptanceHistory}:
            raise InvalidInput("A state is no AcceptanceHistory; give the states that this policy returned.")
        trees = RowTrees(roots, most=self.budget)
        # While nothing is drafted, rates change slowly.
        if min([state.undrafted for state in states]) % 32 not in TRIED_AGAIN:
            return trees.finish(notes=[(1.0, False)] * len(roots))
        depth = self.depth or DEPTH
        depths = np.full(len(roots), depth)
        if known:
            # What is deeper than a row's room would be cut.
            depths = np.minimum(depths, [view.left - 1 if view else depth for view in views])
        nodes = PayingNodes(
            states,
            known[0].known_costs() if known else ALL_ALIKE,
            self._assumed,
            budget=self.budget,
            depths=depths,
            context=sum([view.length for view in known]) / len(roots),
        )
        while nodes.width:
            children = min(nodes.most_children, SAMPLED) if self.adaptive else nodes.most_children
            drawn = yield trees.open(nodes.opened, nodes.numbers, self.law, children=children)
            trees.add(drawn, nodes.choose(drawn.chances, known=self.law is Deterministic))
        return trees.finish(notes=[(nodes.time, nodes.layer > 0, *chances) for chances in nodes.chances])

    def observe(self, state: AcceptanceHistory, outcome: Outcome, tree: TokenTree) -> AcceptanceHistory:
        assert isinstance(tree.note, tuple)
        time, drafted, *chances = tree.note
        return state.after(
            judged_children(tree, outcome.path, chances),
            tokens=len(outcome.path),
            time=time,
            memory=self.memory,
            drafted=drafted,
        )
