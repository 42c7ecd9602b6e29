"""Views of rows that the harness hands to policies that read rows, and costs of passes over toys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from draftwood.laws.proposals import Proposal
from draftwood.laws.randomness import Randomness
from draftwood.protocols import BatchPolicy, LearningPolicy, TreePolicy, policy_states
from draftwood.protocols.pass_costs import PassCosts, PassTable
from draftwood.protocols.row_view import HISTORY, RowView
from draftwood.trees.growth import Growing
from draftwood.trees.outcome import Outcome
from draftwood.trees.tree import TokenTree

_SIZES = (1, 2, 4, 8, 16, 32, 64)


def _toy_costs(node: float) -> PassCosts:
    """Returns costs in which a node of a target pass adds this part of a pass over one token."""
    return PassCosts(
        PassTable.of(lambda nodes, rows, _: 1 + node * nodes * rows, nodes=_SIZES, rows=(1, 64)),
        PassTable.of(lambda nodes, rows, _: 0.05 + node / 20 * nodes * rows, nodes=_SIZES, rows=(1, 64)),
        machine="a toy",
    )


TOY_COSTS = _toy_costs(0.01)
"""A pass over few nodes costs little more than one over one."""

TOY_VIEW = RowView(length=3, costs=TOY_COSTS)

VIEWS = (
    TOY_VIEW,
    RowView(length=4000, left=2, history=((4, 0),) * HISTORY, costs=TOY_COSTS),
    RowView(length=90, left=1, history=((1, 1), (6, 3)), costs=_toy_costs(1.0)),
    RowView(length=17, left=500, history=((8, 8),) * HISTORY, costs=TOY_COSTS),
    RowView(length=2, left=3, history=((0, 0),) * 7, costs=_toy_costs(0.0)),
)
"""Short and long texts, at their beginning and end, that accept nothing, some and all, at various costs."""


@attrs.frozen
class ViewedPolicy(LearningPolicy[Any], BatchPolicy[Any]):
    """A policy that grows the trees of `policy`, every row of which has the same view.

    Attributes:
        policy: one that reads rows.
        view: of every row; the number of rows is that of the round for a policy of the batch.
    """

    policy: TreePolicy
    view: RowView

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return self.policy.laws

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.policy.adaptive

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return self.policy.branches

    @property
    def independent_paths(self) -> bool:  # type: ignore[override]
        return self.policy.independent_paths

    @property
    def asks(self) -> frozenset[str]:  # type: ignore[override]
        return self.policy.asks

    @property
    def learns(self) -> bool:  # type: ignore[override]
        return self.policy.learns

    @property
    def scope(self) -> Any:  # type: ignore[override]
        return self.policy.scope

    def first_state(self) -> Any:
        return policy_states.first_state(self.policy)

    def observe(self, state: Any, outcome: Outcome, tree: TokenTree) -> Any:
        return policy_states.observe(self.policy, state, outcome, tree)

    def share(self, states: Sequence[Any]) -> Sequence[Any]:
        return policy_states.shares(self.policy, states, [self.view] * len(states))

    @property
    def grow_together(self) -> Any:
        """Returns the `grow_together` of an `ArrayPolicy`; None of any other."""
        if getattr(self.policy, "grow_together", None) is None:
            return None
        return lambda roots, states, views: policy_states.grow_together(
            self.policy, roots, states, [self.view] * len(roots)
        )

    def grow(self, root: int, rng: Randomness, state: Any = None) -> Growing:
        if self.policy.scope == "batch" and self.grow_together is None:
            if state is None:
                (state,) = self.share([self.first_state()])
            return self.policy.grow(root, rng, state)  # type: ignore[call-arg]
        return policy_states.grow(self.policy, root, rng, state, view=self.view)
