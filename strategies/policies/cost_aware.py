"""A budget that follows what trees of each size bring and what they cost."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs

from draftwood import (
    Growing,
    InvalidInput,
    LearningPolicy,
    Outcome,
    Randomness,
    TokenTree,
    TreeBuilder,
    TreePolicy,
    Wait,
)
from draftwood.base.validators import at_least, probability
from draftwood.decoding.pass_time import PassTime, as_pass_time
from draftwood.strategies.policies.wrapper import PolicyWrapper, as_policy


def _integers(value: Sequence[int] | str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in (value.split(",") if isinstance(value, str) else value))
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"budgets is {value!r}; give integers such as 0,8,32.") from error


def _check_rising(_: object, __: object, budgets: tuple[int, ...]) -> None:
    if not budgets or budgets[0] < 0 or list(budgets) != sorted(set(budgets)):
        raise InvalidInput(f"budgets is {budgets}; give one or more integers >= 0, each above the last.")


@attrs.frozen
class CostAwareState:
    """For every budget its rounds, their tokens and their time, all fading."""

    rounds: tuple[float, ...]
    tokens: tuple[float, ...]
    time: tuple[float, ...]


@attrs.frozen
class CostAware(PolicyWrapper, LearningPolicy[CostAwareState]):
    """Grows the tree of `policy` with the budget that gives the most tokens for the time of a round.

    A larger tree pays when it multiplies the tokens of a round by more than it multiplies the round's time
    (STree, equations 7 and 8), so the budget with the best ratio of the two is chosen. The time is
    `target_time` of the tree's nodes with the root, and `draft_time` of the nodes of every draft call.
    Tokens and times are averages over the budget's own rounds, recent ones counting most; a budget that
    was hardly tried gets the benefit of the doubt (the upper confidence bound of a discounted bandit).
    Budget 0 is ordinary decoding: one token a round, no draft call.

    Rows of a batch share the part of a pass that does not grow with its tokens, and nothing else. So trees
    pay less the more rows there are, and beyond some number ordinary decoding is best. `rows` says how many
    share a pass, as `max_rows` does; it is no count of who is there at the moment, so that a row writes in
    any batch what it writes by itself.

    The next budget only depends on past rounds, so every tree keeps the law of `policy`.

    Attributes:
        policy: a policy with the attribute `budget` that does not learn, or the name of a registered one.
        budgets: to choose from, rising.
        target_time: of a target pass, as a `PassTime` or as text, `"constant,linear,quadratic"`.
        draft_time: of a draft call, in the same unit.
        memory: how much a past round counts, round by round.
        doubt: tokens that a budget tried once is thought better than it looked.
        rows: that share a pass.

    Source: STree, section 4.3, equations 7 and 8 (arXiv 2505.14969); the choice among budgets is Garivier
    and Moulines' discounted UCB (arXiv 0805.3415).
    """

    policy: TreePolicy = attrs.field(default="layered-dyspec", converter=as_policy)  # type: ignore[assignment]
    budgets: tuple[int, ...] = attrs.field(
        default=(0, 4, 8, 16, 32, 64), converter=_integers, validator=_check_rising
    )
    target_time: PassTime = attrs.field(default=PassTime(1.0, 0.01), converter=as_pass_time)
    draft_time: PassTime = attrs.field(default=PassTime(0.05, 0.0005), converter=as_pass_time)
    memory: float = attrs.field(default=0.98, validator=probability)
    doubt: float = attrs.field(default=0.5, converter=float)
    rows: int = attrs.field(default=1, validator=at_least(1))
    source = "STree, equations 7 and 8"

    def __attrs_post_init__(self) -> None:
        if not isinstance(getattr(self.policy, "budget", None), int) or self.policy.learns:
            raise InvalidInput(
                f"{type(self.policy).__name__} has no budget, or learns by itself; give a policy such as "
                "layered-dyspec or fixed-tree."
            )

    def first_state(self) -> CostAwareState:
        nothing = (0.0,) * len(self.budgets)
        return CostAwareState(nothing, nothing, nothing)

    def grow(self, root: int, rng: Randomness, state: CostAwareState | None = None) -> Growing:
        tree, spent = TreeBuilder(root).finish(), 0.0
        if budget := self.budgets[self._chosen(state or self.first_state())]:
            growing = attrs.evolve(self.policy, budget=budget).grow(root, rng)  # type: ignore[misc]
            try:
                request = next(growing)
                while not isinstance(request, Wait):  # no policy of one row waits for others
                    spent += self.draft_time.shared(self.rows)(len(request))
                    request = growing.send((yield request))
            except StopIteration as finished:
                tree = finished.value
        return attrs.evolve(tree, note=spent)

    def observe(self, state: CostAwareState, outcome: Outcome, tree: TokenTree) -> CostAwareState:
        assert isinstance(tree.note, float)
        chosen, spent = self._chosen(state), tree.note + self.target_time.shared(self.rows)(len(tree))
        return CostAwareState(
            self._updated(state.rounds, chosen, 1),
            self._updated(state.tokens, chosen, len(outcome.emitted)),
            self._updated(state.time, chosen, spent),
        )

    def _updated(self, averages: tuple[float, ...], chosen: int, more: float) -> tuple[float, ...]:
        return tuple(self.memory * value + more * (index == chosen) for index, value in enumerate(averages))

    def _chosen(self, state: CostAwareState) -> int:
        """The index of the budget that promises most."""
        if len(state.rounds) != len(self.budgets):
            raise InvalidInput(
                f"The state holds figures of {len(state.rounds)} budgets and the policy has the "
                f"{len(self.budgets)} budgets {self.budgets}; give a state of this policy."
            )
        return max(range(len(self.budgets)), key=lambda index: self._promise(state, index))

    def _promise(self, state: CostAwareState, index: int) -> float:
        """Tokens for a unit of time that a budget may well bring."""
        rounds = state.rounds[index]
        if not rounds:
            return math.inf
        doubt = 0.0
        if self.budgets[index]:  # a round without a tree has one token, and no doubt about it
            doubt = self.doubt * math.sqrt(2 * math.log(max(sum(state.rounds), 1.0)) / rounds)
        return (state.tokens[index] / rounds + doubt) / (state.time[index] / rounds)
