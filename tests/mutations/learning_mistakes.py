"""Mistakes in policies that learn from outcomes, each with the policy that is right."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from draftwood import (
    Growing,
    LearningPolicy,
    Outcome,
    Randomness,
    TokenTree,
    TreeBuilder,
    WithoutReplacement,
    draw_children,
)
from draftwood.strategies.policies.fixed_tree import FixedTree
from tests.mutations.mistake import Mistake

WITHOUT = frozenset({WithoutReplacement})


def _pair() -> FixedTree:
    return FixedTree(1, 2)


def kept(tree: TokenTree, keep: Any) -> TokenTree:
    """The tree without nodes for which `keep(token, chance)` is false, and what hangs below them."""
    tokens, left = tree.tokens.tolist(), []
    for node in range(len(tree)):
        parent = int(tree.parents[node])
        if parent < 0:
            left.append(node)
            continue
        siblings = tree.children(parent)
        rank = siblings.index(node)
        earlier = [tokens[sibling] for sibling in siblings[:rank]]
        chance = float(tree.proposals[parent].conditional(rank, earlier)[tokens[node]])
        if parent in left and keep(tokens[node], chance):
            left.append(node)
    return tree.subtree(torch.tensor(left))


@attrs.frozen
class PrunesAfterBadRounds(LearningPolicy[int]):
    """After `patience` rounds without an accepted token, drops drawn children that are unlikely."""

    patience: int = 1
    laws = WITHOUT

    def first_state(self) -> int:
        return 0

    def grow(self, root: int, rng: Randomness, state: int | None = None) -> Growing:
        tree = yield from _pair().grow(root, rng)
        if (state or 0) < self.patience:
            return tree
        return kept(tree, lambda _, chance: chance > 0.4)

    def observe(self, state: int, outcome: Outcome, tree: TokenTree) -> int:
        return 0 if outcome.accepted else min(state + 1, self.patience)


@attrs.frozen
class Counts(LearningPolicy[int]):
    """Learns and does nothing wrong: a second child after a bad round."""

    laws = WITHOUT

    def first_state(self) -> int:
        return 0

    def grow(self, root: int, rng: Randomness, state: int | None = None) -> Growing:
        return (yield from FixedTree(1, 1 + (state or 0)).grow(root, rng))

    def observe(self, state: int, outcome: Outcome, tree: TokenTree) -> int:
        return int(not outcome.accepted)


@attrs.frozen
class DropsRejected(LearningPolicy[tuple[int, ...]]):
    """Drops tokens that were rejected in the last round, once they are drawn."""

    laws = WITHOUT

    def first_state(self) -> tuple[int, ...]:
        return ()

    def grow(self, root: int, rng: Randomness, state: tuple[int, ...] | None = None) -> Growing:
        tree = yield from _pair().grow(root, rng)
        return kept(tree, lambda token, _: token not in (state or ()))

    def observe(self, state: tuple[int, ...], outcome: Outcome, tree: TokenTree) -> tuple[int, ...]:
        rejected = set(range(1, len(tree))) - set(outcome.path)
        return tuple(sorted({int(tree.tokens[node]) for node in rejected}))


@attrs.frozen
class AvoidsRejected(DropsRejected):
    """The right form: leaves those tokens out of the draw, and declares so."""

    def grow(self, root: int, rng: Randomness, state: tuple[int, ...] | None = None) -> Growing:
        tree = TreeBuilder(root)
        probs = (yield tree.request([0])).clone()
        probs[:, list(state or ())] = 0
        total = probs.sum()
        (drawn,) = draw_children(
            WithoutReplacement, probs / total if float(total) > 0 else probs, count=2, rng=rng
        )
        tree.add_children(0, drawn.tokens, drawn.proposal)
        return tree.finish()


MISTAKES = [
    Mistake(
        "a learning policy prunes drawn children after a bad round",
        "a threshold that is raised when little is accepted",
        "policy",
        Counts,
        PrunesAfterBadRounds,
    ),
    Mistake(
        "the same after four rounds",
        "a warm-up that no short test reaches",
        "policy",
        Counts,
        lambda: PrunesAfterBadRounds(4),
    ),
    Mistake(
        "a policy drops tokens that were rejected in the last round",
        "after they are drawn",
        "policy",
        AvoidsRejected,
        DropsRejected,
    ),
]
