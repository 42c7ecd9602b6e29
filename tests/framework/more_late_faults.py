"""Strategies whose fault shows at their default settings only."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from draftwood import (
    LearningPolicy,
    TreeBuilder,
    TreePolicy,
    WithoutReplacement,
    WithReplacement,
    draw_children,
)
from draftwood.strategies.policies.chain import Chain
from draftwood.strategies.policies.fixed_tree import FixedTree
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection


def one(law: Any, probs: torch.Tensor, rng: Any, count: int = 1) -> Any:
    (drawn,) = draw_children(law, probs, count=count, rng=rng)
    return drawn


class AChain(TreePolicy):
    """A chain with a place for a fault: `kept` says whether a drawn token is kept."""

    length: int
    laws = frozenset({WithReplacement})

    def grow(self, root, rng):
        tree, node, path = TreeBuilder(root), 0, [root]
        for depth in range(self.length):
            probs = yield tree.request([node])
            drawn = one(WithReplacement, self.drawn_from(probs, depth, path), rng)
            if not drawn.tokens or not self.kept(drawn.tokens[0], probs[0], depth, path):
                break
            named = drawn if self.named_as_drawn else one(WithReplacement, probs, rng)
            (node,) = tree.add_children(node, drawn.tokens, named.proposal)
            path.append(drawn.tokens[0])
        return tree.finish()

    named_as_drawn = True

    def drawn_from(self, probs, depth, path):
        return probs

    def kept(self, token, probs, depth, path):
        return True


@attrs.frozen
class AtOneDepth(AChain):
    """By depth: at the seventh level alone an unlikely token is dropped."""

    length: int = 8

    def kept(self, token, probs, depth, path):
        return depth != 6 or float(probs[token]) > 0.2 * float(probs.max())


@attrs.frozen
class ATokenLeftOut(AChain):
    """By token: number 17 ends a draft and is left out, as a special token might be."""

    length: int = 5

    def kept(self, token, probs, depth, path):
        return token != 17


@attrs.frozen
class SharpDraft(AChain):
    """By temperature: where the draft is nearly certain, anything else that was drawn is dropped."""

    length: int = 4

    def kept(self, token, probs, depth, path):
        return float(probs.max()) < 0.9 or float(probs[token]) > 0.5


@attrs.frozen
class EightBits(AChain):
    """By vocabulary: tokens of a large one are drawn without those beyond 256, and named as if with them."""

    length: int = 4
    named_as_drawn = False

    def drawn_from(self, probs, depth, path):
        if probs.shape[-1] <= 256:
            return probs
        cut = probs.clone()
        cut[..., 256:] = 0
        return cut / cut.sum(-1, keepdim=True)


@attrs.frozen
class TiesToTheFirst(AChain):
    """At a tie: of the likeliest tokens that tie, the first has what all of them have together."""

    length: int = 4
    named_as_drawn = False

    def drawn_from(self, probs, depth, path):
        best = probs[0] == probs[0].max()
        if int(best.sum()) < 2:
            return probs
        moved = probs.clone()
        moved[0, best] = 0
        moved[0, best.nonzero()[0]] = probs[0, best].sum()
        return moved


@attrs.frozen
class AfterTheEnd(AChain):
    """After an end of text: below token 5 everything is drawn flat, and named as the draft's."""

    length: int = 6
    named_as_drawn = False

    def drawn_from(self, probs, depth, path):
        return torch.full_like(probs, 1 / probs.shape[-1]) if 5 in path[:-2] else probs


@attrs.frozen
class SameTokenThrice(AChain):
    """By text: a token that would come a third time in one draft is dropped."""

    length: int = 8

    def kept(self, token, probs, depth, path):
        return path.count(token) < 3


@attrs.frozen
class LongTexts(AChain):
    """By length of the text: beyond 300 tokens an unlikely token is dropped."""

    length: int = 3
    reads_row = True

    def grow(self, root, rng, view):  # type: ignore[override]  # a policy that reads rows takes their views
        tree, node = TreeBuilder(root), 0
        for _ in range(self.length):
            probs = yield tree.request([node])
            drawn = one(WithReplacement, probs, rng)
            late = 300 < view.length < 3000
            if not drawn.tokens or (late and float(probs[0, drawn.tokens[0]]) < 0.2 * float(probs.max())):
                break
            (node,) = tree.add_children(node, drawn.tokens, drawn.proposal)
        return tree.finish()


@attrs.frozen
class AfterManyAcceptances(LearningPolicy[int]):
    """By what was learnt: after 100 accepted tokens in all an unlikely token is dropped."""

    length: int = 4
    laws = frozenset({WithReplacement})

    def first_state(self):
        return 0

    def observe(self, state, outcome, tree):
        return min(state + len(outcome.path) - 1, 101)

    def grow(self, root, rng, state=None):
        tree, node = TreeBuilder(root), 0
        for _ in range(self.length):
            probs = yield tree.request([node])
            drawn = one(WithReplacement, probs, rng)
            late = (state or 0) > 100
            if not drawn.tokens or (late and float(probs[0, drawn.tokens[0]]) < 0.2 * float(probs.max())):
                break
            (node,) = tree.add_children(node, drawn.tokens, drawn.proposal)
        return tree.finish()


@attrs.frozen
class EqualSiblingsMerged(TreePolicy):
    """By number of siblings: of four or more, equal ones are merged, though drawn with replacement."""

    branching: int = 6
    laws = frozenset({WithReplacement})
    adaptive = True

    def grow(self, root, rng):
        tree = TreeBuilder(root)
        probs = yield tree.request([0])
        drawn = one(WithReplacement, probs, rng, self.branching)
        tokens = list(drawn.tokens)
        if len(tokens) >= 4:
            tokens = list(dict.fromkeys(tokens))
        if tokens:
            tree.add_children(0, tokens, drawn.proposal)
        return tree.finish()


@attrs.frozen
class TheLastOfTheBudget(TreePolicy):
    """By budget: of a large tree, the last nodes are kept by their own probability."""

    budget: int = 20
    laws = frozenset({WithoutReplacement})
    adaptive = True

    def grow(self, root, rng):
        tree, front, count = TreeBuilder(root), [0], 0
        while front and count < self.budget:
            probs = yield tree.request(front)
            later = list[int]()
            for row, drawn in enumerate(draw_children(WithoutReplacement, probs, count=2, rng=rng)):
                tokens = drawn.tokens[: self.budget - count]
                if count >= 14:
                    kept = 0
                    while kept < len(tokens) and float(probs[row, tokens[kept]]) > 0.15:
                        kept += 1
                    tokens = tokens[:kept]
                if tokens:
                    later += tree.add_children(front[row], tokens, drawn.proposal)
                    count += len(tokens)
            front = later
        return tree.finish()


@attrs.frozen
class WideTreesReversed(TreePolicy):
    """By width: where a level has more than six nodes, the children of each are in reversed order."""

    depth: int = 4
    branching: int = 2
    laws = frozenset({WithoutReplacement})

    def grow(self, root, rng):
        tree, front = TreeBuilder(root), [0]
        for _ in range(self.depth):
            probs = yield tree.request(front)
            later = list[int]()
            for node, drawn in zip(
                front,
                draw_children(WithoutReplacement, probs, count=self.branching, rng=rng),
                strict=True,
            ):
                tokens = drawn.tokens[::-1] if len(front) > 6 else drawn.tokens
                if tokens:
                    later += tree.add_children(node, tokens, drawn.proposal)
            if not later:
                break
            front = later
        return tree.finish()


class SharedDraws(AChain):
    """By row: rows after the sixth draw what the sixth drew."""

    def __init__(self, length: int = 4) -> None:
        self.length = length
        self.streams: list[Any] = []

    def drawn_from(self, probs, depth, path):
        return probs

    def grow(self, root, rng):
        if rng not in self.streams:
            self.streams.append(rng)
        place = self.streams.index(rng)
        return (yield from super().grow(root, rng if place < 6 else self.streams[5]))


@attrs.frozen
class ResidualOfTheBest(RecursiveRejection):
    """A verifier, by vocabulary: after a rejection it only draws from the 100 likeliest tokens."""

    def verify(self, tree, target_probs, rng):
        outcome = super().verify(tree, target_probs, rng)
        last = outcome.path[-1]
        if outcome.bonus or target_probs.shape[-1] <= 100:
            return outcome
        kept = torch.zeros_like(target_probs[last])
        best = target_probs[last].topk(100).indices
        kept[best] = target_probs[last][best]
        if float(kept[outcome.extra]) > 0:
            return outcome
        return type(outcome).of(tree, outcome.path, extra=int(kept.argmax()), bonus=False)


@attrs.frozen
class RowsOfSixteen(RecursiveRejection):
    """A verifier, by budget: a leaf beyond node 12 takes its bonus token from an earlier node's row."""

    def verify(self, tree, target_probs, rng):
        outcome = super().verify(tree, target_probs, rng)
        last = outcome.path[-1]
        if not outcome.bonus or last <= 12:
            return outcome
        return type(outcome).of(tree, outcome.path, extra=rng.choose(target_probs[last - 12]), bonus=True)


@attrs.frozen
class EqualModels(RecursiveRejection):
    """A verifier, at a certain target: what has more than 0.95 is taken for certain."""

    def verify(self, tree, target_probs, rng):
        sure = target_probs.max(-1, keepdim=True).values > 0.95
        certain = torch.nn.functional.one_hot(target_probs.argmax(-1), target_probs.shape[-1])
        return super().verify(tree, torch.where(sure, certain.to(target_probs), target_probs), rng)


class SharedCoins(RecursiveRejection):
    """A verifier, by row: rows after the sixth are judged by the numbers of the first."""

    def verify_rows(self, trees, target_probs, rngs):
        chosen = [rng if row < 6 else rngs[0] for row, rng in enumerate(rngs)]
        return [self.verify(*row) for row in zip(trees, target_probs, chosen, strict=True)]


@attrs.frozen
class LongPathsCut(RecursiveRejection):
    """A verifier, by depth: a path of more than five nodes is cut, and goes on with the target's token."""

    def verify(self, tree, target_probs, rng):
        outcome = super().verify(tree, target_probs, rng)
        if len(outcome.path) <= 5:
            return outcome
        path = outcome.path[:5]
        return type(outcome).of(tree, path, extra=rng.choose(target_probs[path[-1]]), bonus=False)


@attrs.frozen
class SmallRatios(RecursiveRejection):
    """A verifier, by a token's number: token 30 is always rejected where it was drafted."""

    def verify(self, tree, target_probs, rng):
        if 30 in tree.tokens.tolist()[1:] and target_probs.shape[-1] > 30:
            target_probs = target_probs.clone()
            rows = torch.arange(len(target_probs))
            target_probs[rows, 30] = 0
            target_probs = target_probs / target_probs.sum(-1, keepdim=True)
        return super().verify(tree, target_probs, rng)


REJECTION = RecursiveRejection()
WRONG: dict[str, tuple[Any, Any]] = {
    **{
        kind.__name__: (kind(), REJECTION)
        for kind in (
            AtOneDepth,
            ATokenLeftOut,
            SharpDraft,
            EightBits,
            TiesToTheFirst,
            AfterTheEnd,
            SameTokenThrice,
            LongTexts,
            AfterManyAcceptances,
            EqualSiblingsMerged,
            TheLastOfTheBudget,
            WideTreesReversed,
            SharedDraws,
        )
    },
    "ResidualOfTheBest": (Chain(4), ResidualOfTheBest()),
    "RowsOfSixteen": (FixedTree(4, 2), RowsOfSixteen()),
    "EqualModels": (Chain(4), EqualModels()),
    "SharedCoins": (Chain(4), SharedCoins()),
    "LongPathsCut": (Chain(8), LongPathsCut()),
    "SmallRatios": (Chain(4), SmallRatios()),
}
