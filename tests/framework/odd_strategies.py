"""Right strategies of odd kinds: a check that calls one wrong is wrong itself."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from draftwood import LearningPolicy, TreeBuilder, TreePolicy, WithReplacement
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection
from tests.framework.more_late_faults import REJECTION, AChain, one


@attrs.frozen
class EndsBeforeTheDraw(AChain):
    """A chain that ends before it draws where the draft is unsure."""

    length: int = 8

    def grow(self, root, rng):
        tree, node = TreeBuilder(root), 0
        for _ in range(self.length):
            probs = yield tree.request([node])
            if float(probs.max()) < 0.3:
                break
            drawn = one(WithReplacement, probs, rng)
            if not drawn.tokens:
                break
            (node,) = tree.add_children(node, drawn.tokens, drawn.proposal)
        return tree.finish()


@attrs.frozen
class LongerByTheRoot(AChain):
    """A chain whose length depends on the root's token."""

    length: int = 6

    def grow(self, root, rng):
        short = attrs.evolve(self, length=2) if root % 2 else self
        return (yield from AChain.grow(short, root, rng))


@attrs.frozen
class CooledAndNamed(AChain):
    """A chain that draws from the eight likeliest tokens, cooled from level 3 on, and says so."""

    length: int = 6

    def drawn_from(self, probs, depth, path):
        kept = probs.topk(min(8, probs.shape[-1])).indices
        cut = torch.zeros_like(probs).scatter(-1, kept, probs.gather(-1, kept))
        cut = cut**2 if depth >= 3 else cut
        return cut / cut.sum(-1, keepdim=True).clamp(min=1e-300)


@attrs.frozen
class EndsAfterItsParent(AChain):
    """A chain that ends after token 1 was kept: that is known before the next draw."""

    length: int = 6

    def kept(self, token, probs, depth, path):
        return path[-1] != 1 or depth == 0


@attrs.frozen
class ManyEqualSiblings(TreePolicy):
    """Six siblings with replacement, equal ones among them."""

    branching: int = 6
    laws = frozenset({WithReplacement})

    def grow(self, root, rng):
        tree = TreeBuilder(root)
        probs = yield tree.request([0])
        drawn = one(WithReplacement, probs, rng, self.branching)
        if drawn.tokens:
            tree.add_children(0, drawn.tokens, drawn.proposal)
        return tree.finish()


@attrs.frozen
class LongerWhenAccepted(LearningPolicy[int]):
    """A chain as long as what was accepted last, and one more."""

    length: int = 6
    laws = frozenset({WithReplacement})

    def first_state(self):
        return 1

    def observe(self, state, outcome, tree):
        return min(len(outcome.path), self.length)

    def grow(self, root, rng, state=None):
        return (yield from Chain(min(state or 1, self.length)).grow(root, rng))


@attrs.frozen
class AnIdleDraw(RecursiveRejection):
    """A verifier that throws a coin for nothing before it judges."""

    def verify(self, tree, target_probs, rng):
        rng.accept(0.5)
        return super().verify(tree, target_probs, rng)


@attrs.frozen
class FromTheLastRow(RecursiveRejection):
    """A verifier that judges rows from the last to the first."""

    def verify_rows(self, trees, target_probs, rngs):
        judged = [self.verify(*row) for row in reversed(list(zip(trees, target_probs, rngs, strict=True)))]
        return judged[::-1]


@attrs.frozen
class NotTheBonus(RecursiveRejection):
    """A verifier that gives back the last accepted leaf and draws its token anew, which no law forbids."""

    def verify(self, tree, target_probs, rng):
        outcome = super().verify(tree, target_probs, rng)
        if not outcome.bonus or len(outcome.path) < 2:
            return outcome
        last = outcome.path[-1]
        return type(outcome).of(tree, outcome.path[:-1], extra=int(tree.tokens[last]), bonus=False)


RIGHT: dict[str, tuple[Any, Any]] = {
    **{
        kind.__name__: (kind(), REJECTION)
        for kind in (
            EndsBeforeTheDraw,
            LongerByTheRoot,
            CooledAndNamed,
            EndsAfterItsParent,
            ManyEqualSiblings,
            LongerWhenAccepted,
        )
    },
    "AnIdleDraw": (Chain(4), AnIdleDraw()),
    "FromTheLastRow": (FixedTree(3, 2), FromTheLastRow()),
    "NotTheBonus": (Chain(4), NotTheBonus()),
}
