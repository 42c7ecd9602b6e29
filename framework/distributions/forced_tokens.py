"""Spans that a constraint forces: in the tree without a pass of the draft, which knows them no better."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs
import torch
from torch import Tensor

from draftwood.distributions.constraints import ConstrainedRow
from draftwood.laws.proposals import Deterministic, Proposal
from draftwood.laws.randomness import CounterRandomness
from draftwood.trees.outcome import Outcome
from draftwood.trees.prefixes import Path, paths_of
from draftwood.trees.tree import TokenTree

_LONGEST = 16  # nodes after one leaf; with a shared limit, one branch would depend on another


def with_forced_tokens(
    tree: TokenTree,
    constraint: ConstrainedRow,
    *,
    laws: Collection[type[Proposal]],
    like: Tensor,
    deepest: int,
) -> TokenTree:
    """`tree` with its leaves followed by the tokens that the constraint forces.

    Law P holds: the added nodes depend only on the tokens before them, and every law draws a token with
    certainty if it is the only one allowed. A token that ends the text is not added.

    Args:
        tree: as the policy grew it.
        constraint: the constraint of the tree's row.
        laws: the laws of the policy; one of them is the law of the new nodes.
        like: a draft distribution `[..., vocab]`, for dtype and device.
        deepest: depth of the deepest node that may be added; the constraint is asked about no deeper one.

    Returns:
        A tree whose first `tree.size` nodes are the nodes of `tree`, or `tree` itself.
    """
    tokens, parents = tree.tokens[: tree.size].tolist(), tree.parents[: tree.size].tolist()
    paths = paths_of(tokens, parents)
    proposals = dict(tree.proposals)
    growing = [(leaf, paths[leaf]) for leaf in tree.leaves if constraint.ends.isdisjoint(paths[leaf])]
    for _ in range(_LONGEST):
        growing = [(leaf, path) for leaf, path in growing if len(path) < deepest]
        if not growing:
            break
        forced = zip(growing, _forced(constraint, [path for _, path in growing]), strict=True)
        growing = []
        for (leaf, path), token in forced:
            law = None if token is None or token in constraint.ends else _only(token, laws, like)
            if token is not None and law is not None:
                proposals[leaf] = law
                growing.append((len(tokens), (*path, token)))
                tokens.append(token)
                parents.append(leaf)
    if len(tokens) == tree.size:
        return tree
    device = tree.tokens.device
    return TokenTree(torch.tensor(tokens, device=device), torch.tensor(parents, device=device), proposals)


def without_forced_tokens(outcome: Outcome, size: int) -> Outcome:
    """Returns the outcome without the nodes from `size` on, which the policy did not draw."""
    drafted_nodes = sum(node < size for node in outcome.path)
    if drafted_nodes == len(outcome.path):
        return attrs.evolve(outcome, drafted=size - 1)
    return attrs.evolve(
        outcome,
        path=outcome.path[:drafted_nodes],
        tokens=outcome.tokens[:drafted_nodes],
        extra=outcome.tokens[drafted_nodes],
        bonus=True,
        drafted=size - 1,
    )


def _forced(constraint: ConstrainedRow, paths: Sequence[Path]) -> list[int | None]:
    """The one token that may follow each path, or None."""
    masks = constraint.masks(paths)
    firsts = masks.to(torch.uint8).argmax(-1).tolist()
    return [
        first if open_ == 1 else None for first, open_ in zip(firsts, masks.sum(-1).tolist(), strict=True)
    ]


def _only(token: int, laws: Collection[type[Proposal]], like: Tensor) -> Proposal | None:
    """The law by which `token` is the only draw; None where none of `laws` is sure to draw it."""
    vocab_size = like.shape[-1]
    p = torch.zeros(vocab_size, dtype=like.dtype, device=like.device)
    p[token] = 1
    law = min(laws, key=lambda law: (law is not Deterministic, law.__name__))
    if law is Deterministic:
        return Deterministic((token,), vocab_size, dtype=like.dtype, device=like.device)
    # Any chance will do, since one token is all that there is to draw.
    rng = CounterRandomness.seeded(0)
    drawn = law.draw(p.unsqueeze(0) if law.several_drafters else p, count=1, rng=rng)
    return drawn.proposal if drawn.tokens and drawn.proposal.conditional(0, ())[token] == 1 else None
