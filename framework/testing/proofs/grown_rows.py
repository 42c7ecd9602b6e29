"""Checks that rows that grow together get the same trees as rows that grow one by one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from draftwood.laws.proposals import Proposal
from draftwood.laws.randomness import CounterRandomness, Randomness
from draftwood.protocols import TreePolicy, policy_states
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.models.row_views import TOY_VIEW
from draftwood.trees.level_plan import GrowingLevels, Levels
from draftwood.trees.request import RequestLog, Requests
from draftwood.trees.tree import TokenTree

Draft = Callable[[Sequence[int]], Tensor]
"""Function from a path that begins with the root's token to the draft distribution, or one per drafter."""


def grown(
    policy: TreePolicy,
    roots: Sequence[int],
    rngs: Sequence[Randomness],
    drafts: Sequence[Draft],
    states: Sequence[Any] = (),
) -> Sequence[TokenTree]:
    """The trees of rows side by side, each by its draft. What stands in padding is no distribution."""
    growth = policy_states.growth(
        policy, roots, rngs, states or [None] * len(roots), views=[TOY_VIEW] * len(roots)
    )
    logs = [RequestLog() for _ in roots]
    while growth.requests is not None:
        growth.answer(_answered(growth.requests, logs, roots, drafts))
    return growth.trees()


def grown_as_planned(
    policy: TreePolicy, roots: Sequence[int], drafts: Sequence[Draft], *, most: int | None = None
) -> Sequence[TokenTree] | None:
    """The trees of levels of `most` nodes (None: as many as the plan wants) that a drafter grew by itself.

    None where the policy announces no plan, or where so narrow levels may have missed a node.
    """
    rngs = [CounterRandomness.seeded(0) for _ in roots]
    growth = policy_states.growth(policy, roots, rngs, [None] * len(roots), views=[TOY_VIEW] * len(roots))
    if (plan := growth.plan) is None:
        return None
    vocab = drafts[0]((roots[0],)).shape[-1]
    widths = plan.widths(plan.width if most is None else most, vocab_size=vocab)
    growing, paths = GrowingLevels(plan, len(roots), torch.device("cpu")), [[(root,)] for root in roots]
    for width in widths:
        if growing.depth:
            tokens, parents = growing.expand(width)
            paths = [
                [(*above[parent], token) for token, parent in zip(of_row, of_parents, strict=True)]
                for above, of_row, of_parents in zip(paths, tokens.tolist(), parents.tolist(), strict=True)
            ]
        answers = [[draft(path) for path in of_row] for draft, of_row in zip(drafts, paths, strict=True)]
        growing.take(torch.stack([torch.stack(of_row) for of_row in answers]))
    levels = Levels.of(growing.packed(), widths=widths, vocab_size=vocab)
    if levels.misses(plan):
        return None
    growth.follow(levels)
    return growth.trees()


def _answered(
    requests: Requests, logs: Sequence[RequestLog], roots: Sequence[int], drafts: Sequence[Draft]
) -> Tensor:
    like = drafts[0]((roots[0],))
    probs = torch.full((*requests.tokens.shape, *like.shape), 0.25, dtype=like.dtype)
    for row, request in enumerate(requests):
        for column, number in enumerate(logs[row].take(request) if request is not None else ()):
            probs[row, column] = drafts[row]((roots[row], *logs[row].path(number)))
    return probs


def difference(alone: TokenTree, together: TokenTree) -> str | None:
    """Returns the difference between two trees, as the end of a sentence; None where they are equal."""
    for name in ("tokens", "parents", "depths"):
        one, other = (getattr(tree, name)[: len(tree)].tolist() for tree in (alone, together))
        if one != other:
            return f"{name} {one} one by one and {other} together"
    if set(alone.proposals) != set(together.proposals):
        one, other = sorted(alone.proposals), sorted(together.proposals)
        return f"laws of the nodes {one} one by one and {other} together"
    for node, law in alone.proposals.items():
        tokens = [int(alone.tokens[child]) for child in alone.children(node)]
        if not _alike(law, together.proposals[node], tokens):
            return f"another law at node {node}: {law} one by one and {together.proposals[node]} together"
    return None


def _alike(one: Proposal, other: Proposal, tokens: Sequence[int]) -> bool:
    """Returns whether two laws say the same of siblings that hold these tokens."""
    return type(one) is type(other) and all(
        torch.equal(one.conditional(k, tokens[:k]), other.conditional(k, tokens[:k]))
        for k in range(len(tokens))
    )


def assert_rows_alike(policy: TreePolicy, drafts: Sequence[Draft], *, vocab_size: int, seeds: int) -> None:
    """Raise `LawBroken` unless rows that grow together get the same trees as one by one, with equal noise.

    Args:
        policy: in its first state, if it learns.
        drafts: of each row.
        vocab_size: of the drafts.
        seeds: how often it is tried.
    """
    state = policy_states.first_state(policy)
    roots = [row % vocab_size for row in range(len(drafts))]
    for seed in range(seeds):
        rngs, again = (
            [CounterRandomness.seeded(97 * seed + row) for row in range(len(drafts))] for _ in range(2)
        )
        trees = grown(policy, roots, rngs, drafts, [state] * len(drafts))
        for row, (root, rng, draft) in enumerate(zip(roots, again, drafts, strict=True)):
            (alone,) = grown(policy, [root], [rng], [draft], [state])
            found = difference(alone, trees[row])
            if found is not None:
                raise LawBroken(
                    f"Row {row} of {len(drafts)} has {found}.",
                    likely="what one row draws or keeps reaches another: something is kept on self, a stream "
                    "other than the row's own is drawn from, or rows share a budget (then derive from "
                    "draftwood.BatchPolicy, whose scope is 'batch').",
                )
        _assert_planned_alike(policy, roots, drafts)


def _assert_planned_alike(policy: TreePolicy, roots: Sequence[int], drafts: Sequence[Draft]) -> None:
    """Raise `LawBroken` unless the policy's plan, if it has one, gives the trees of `grow`."""
    single = [partial(_single_precision, draft) for draft in drafts]
    planned = grown_as_planned(policy, roots, single)
    for row, tree in enumerate(planned or ()):
        (alone,) = grown(policy, [roots[row]], [CounterRandomness.seeded(row)], [single[row]])
        if (found := difference(alone, tree)) is not None:
            raise LawBroken(
                f"Row {row} of {len(drafts)}, grown by its plan, has {found}.",
                likely="the plan that is announced does not say what grow asks for.",
            )


def _single_precision(draft: Draft, path: Sequence[int]) -> Tensor:
    """A draft's distribution as a drafter gives it."""
    return draft(path).float()
