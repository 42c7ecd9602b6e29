"""States of learning policies, passed from round to round and call to call; None for other policies.

Shares of batch policies are made here too, as a round begins. A policy that wraps another passes on the
inner state by these functions, which accept both kinds of policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import attrs

from draftwood.base.errors import InvalidInput
from draftwood.laws.randomness import NodeStreams, Randomness
from draftwood.protocols import BatchPolicy, LearningPolicy, TreePolicy
from draftwood.protocols.row_view import RowView
from draftwood.trees.array_growth import ArrayGrowth
from draftwood.trees.growth import Growing, Growth, one_row
from draftwood.trees.outcome import Outcome
from draftwood.trees.row_trees import GrowingRows
from draftwood.trees.tree import TokenTree


def first_state(policy: TreePolicy) -> Any:
    """Returns the state of `policy` before the first round; None where it does not learn.

    Raises:
        InvalidInput: it declares that it learns and has no state, or one that can change.
    """
    if not policy.learns:
        return None
    begin = getattr(policy, "first_state", None)
    state = begin() if callable(begin) else None
    if state is None:
        raise InvalidInput(
            f"{policy} declares learns = True but its first_state() returns None; subclass "
            "draftwood.LearningPolicy, which defines how states are passed on."
        )
    _check_value(policy, state)
    return state


def row_states(policy: TreePolicy, initial: Any, rows: int) -> list[Any]:
    """Returns the state that every row starts from: `initial`, `initial[i]` of a list, or the first state.

    Raises:
        InvalidInput: too few or many, or not states of this policy.
    """
    first = first_state(policy)
    if initial is None:
        return [first] * rows
    if first is None:
        raise InvalidInput(f"policy_state was given and {policy} does not learn; leave it out.")
    states = initial if isinstance(initial, list) else [initial] * rows
    if len(states) != rows:
        raise InvalidInput(f"{len(states)} policy states were given for {rows} rows; give one per row.")
    for state in states:
        if type(state) is not type(first):
            raise InvalidInput(
                f"policy_state holds {state!r}, which is no {type(first).__qualname__} of {policy}; give "
                "what Generation.policy_states or first_state() gave."
            )
        _check_value(policy, state)
    return list(states)


def grow(
    policy: TreePolicy, root: int, rng: Randomness, state: Any, *, view: RowView | None = None
) -> Growing:
    """Call `policy.grow` for a row by itself, with `state` where the policy learns and `view` where it reads.

    Raises:
        InvalidInput: the policy reads rows, and there is no `view`.
    """
    if policy.scope == "batch":
        return one_row(growth(policy, [root], [rng], [state], views=[view]))
    given: list[Any] = [state] if policy.learns else []
    if not policy.reads_row:
        return policy.grow(root, rng, *given)
    if view is None:
        raise _unread(policy)
    growing: Growing = cast(Any, policy).grow(root, rng, *given, view=view)
    return growing


def growth(
    policy: TreePolicy,
    roots: Sequence[int],
    rngs: Sequence[Randomness],
    states: Sequence[Any],
    streams: NodeStreams | None = None,
    *,
    views: Sequence[RowView | None] | None = None,
) -> Growth | ArrayGrowth:
    """The trees of all rows of a round, about to grow: one under each of `roots`, by its own stream.

    `streams` is `NodeStreams.of(rngs)`, where it is there already. A policy with `reads_row` needs `views`.
    """
    of_rows = [None] * len(roots) if views is None else views
    if policy.scope == "batch":
        if (growing := grow_together(policy, roots, states, of_rows)) is not None:
            return ArrayGrowth(growing, rngs, streams)
        together, found = cast("BatchPolicy[Any]", policy), shares(policy, states, of_rows)
        each = zip(roots, rngs, found, strict=True)
        return Growth([together.grow(root, rng, share) for root, rng, share in each], rngs, streams)
    rows = zip(roots, rngs, states, of_rows, strict=True)
    return Growth(
        [grow(policy, root, rng, state, view=view) for root, rng, state, view in rows], rngs, streams
    )


def shares(policy: TreePolicy, states: Sequence[Any], views: Sequence[RowView | None]) -> Sequence[Any]:
    """Returns the shares that a batch policy makes for the rows of a round.

    Raises:
        InvalidInput: they are not one for each row.
    """
    states, known = _of_batch(policy, states, views)
    batch = cast(Any, policy)
    found: Sequence[Any] = batch.share(states, known) if policy.reads_row else batch.share(states)
    if len(found) != len(states):
        raise InvalidInput(
            f"share() of {policy} gave {len(found)} shares for {len(states)} rows; return one for each."
        )
    return found


def grow_together(
    policy: TreePolicy, roots: Sequence[int], states: Sequence[Any], views: Sequence[RowView | None]
) -> GrowingRows | None:
    """Call `policy.grow_together`; None of a policy that is no `ArrayPolicy`."""
    own = getattr(policy, "grow_together", None)
    if own is None:
        return None
    growing: GrowingRows = own(roots, *_of_batch(policy, states, views))
    return growing


def _of_batch(
    policy: TreePolicy, states: Sequence[Any], views: Sequence[RowView | None]
) -> tuple[list[Any], list[RowView | None]]:
    """Returns the states of a round's rows, and their views where the policy reads rows."""
    rows = len(states)
    if policy.learns and None in states:
        states = [first_state(policy) if state is None else state for state in states]
    if not policy.reads_row:
        return list(states), [None] * rows
    if None in views:
        raise _unread(policy)
    return list(states), [
        view if view is None or view.rows == rows else attrs.evolve(view, rows=rows) for view in views
    ]


def _unread(policy: TreePolicy) -> InvalidInput:
    return InvalidInput(
        f"{type(policy).__name__} reads the row that it grows a tree for, and there is no RowView here; "
        "use a policy whose reads_row is False."
    )


def observe(policy: TreePolicy, state: Any, outcome: Outcome, tree: TokenTree) -> Any:
    """The state after a round; None where `policy` does not learn.

    Raises:
        InvalidInput: `observe` gives none, or one that can change.
    """
    if not policy.learns:
        return None
    # A type in quotes: evaluated, it would cost more than the cast, for every row of a round.
    after = cast("LearningPolicy[Any]", policy).observe(state, outcome, tree)
    if type(after) is not type(state):
        raise InvalidInput(
            f"observe() of {policy} gave {after!r}; it returns the next state, a {type(state).__qualname__}."
        )
    _check_value(policy, after)
    return after


def _check_value(policy: TreePolicy, state: Any) -> None:
    try:
        hash(state)
    except TypeError as error:
        raise InvalidInput(
            f"The state {state!r} of {policy} can change ({error}); make it an attrs.frozen class with "
            "tuples for lists."
        ) from error
