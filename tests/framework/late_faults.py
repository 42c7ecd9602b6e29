"""Strategies whose fault shows only beyond small settings, each for another reason."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

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
from draftwood.strategies.verifiers.recursive_rejection import RecursiveRejection


def _unlikely(probs: torch.Tensor, token: int) -> bool:
    return float(probs[token]) < 0.3 * float(probs.max())


@attrs.frozen
class DropsUnlikelyWhen(TreePolicy):
    """A chain that drops an unlikely token where `when(depth, tokens so far, probs)` says so."""

    when: Callable[[int, list[int], torch.Tensor], bool]
    length: int = 8
    laws = frozenset({WithReplacement})

    def grow(self, root, rng):
        tree, node, path = TreeBuilder(root), 0, [root]
        for depth in range(self.length):
            probs = yield tree.request([node])
            (drawn,) = draw_children(WithReplacement, probs, count=1, rng=rng)
            if not drawn.tokens:
                break
            token = drawn.tokens[0]
            if self.when(depth, path, probs[0]) and _unlikely(probs[0], token):
                break
            (node,) = tree.add_children(node, drawn.tokens, drawn.proposal)
            path.append(token)
        return tree.finish()


@attrs.frozen
class StopsLearningWell(LearningPolicy[int]):
    """A chain that goes wrong when `counted`, summed over a text's rounds, exceeds `limit`."""

    counted: Callable[[Any], int]
    limit: int
    laws = frozenset({WithReplacement})

    def first_state(self):
        return 0

    def grow(self, root, rng, state=None):
        late = (state or 0) > self.limit
        return (yield from DropsUnlikelyWhen(lambda *_: late, length=5).grow(root, rng))

    def observe(self, state, outcome, tree):
        return state + self.counted(outcome)


@attrs.frozen
class CooledBelow(TreePolicy):
    """A chain that draws from a cooled distribution from depth 5 on, and declares the plain one."""

    length: int = 8
    depth: int = 5
    laws = frozenset({WithReplacement})

    def grow(self, root, rng):
        tree, node = TreeBuilder(root), 0
        for depth in range(self.length):
            probs = yield tree.request([node])
            (declared,) = draw_children(WithReplacement, probs, count=1, rng=rng)
            tokens = declared.tokens
            if depth >= self.depth:
                cooled = probs**2 / (probs**2).sum(-1, keepdim=True)
                (drawn,) = draw_children(WithReplacement, cooled, count=1, rng=rng)
                tokens = drawn.tokens
            if not tokens:
                break
            (node,) = tree.add_children(node, tokens, declared.proposal)
        return tree.finish()


@attrs.frozen
class TopOfMany(TreePolicy):
    """A chain that draws from the 32 most likely tokens, and declares the whole vocabulary."""

    length: int = 4
    laws = frozenset({WithReplacement})

    def grow(self, root, rng):
        tree, node = TreeBuilder(root), 0
        for _ in range(self.length):
            probs = yield tree.request([node])
            (declared,) = draw_children(WithReplacement, probs, count=1, rng=rng)
            kept = probs.topk(min(32, probs.shape[-1])).indices
            cut = torch.zeros_like(probs).scatter(-1, kept, probs.gather(-1, kept))
            (drawn,) = draw_children(WithReplacement, cut / cut.sum(-1, keepdim=True), count=1, rng=rng)
            if not drawn.tokens:
                break
            (node,) = tree.add_children(node, drawn.tokens, declared.proposal)
        return tree.finish()


@attrs.frozen
class PrunedBeyondBudget(TreePolicy):
    """A tree of two children a node whose last leaves are dropped, where unlikely, from 12 nodes on."""

    budget: int = 24
    adaptive = True
    laws = frozenset({WithoutReplacement})

    def grow(self, root, rng):
        tree, front, count = TreeBuilder(root), [0], 0
        while front and count < self.budget:
            probs = yield tree.request(front)
            later = list[int]()
            for row, (node, drawn) in enumerate(
                zip(front, draw_children(WithoutReplacement, probs, count=2, rng=rng), strict=True)
            ):
                tokens = drawn.tokens
                while count >= 12 and tokens and _unlikely(probs[row], tokens[-1]):
                    tokens = tokens[:-1]
                if tokens:
                    later += tree.add_children(node, tokens, drawn.proposal)
                    count += len(tokens)
            front = later
        return tree.finish()


@attrs.frozen
class SortedSiblings(TreePolicy):
    """Children of the root that are put in order of probability where there are five or more."""

    branching: int = 6
    laws = frozenset({WithoutReplacement})

    def grow(self, root, rng):
        tree = TreeBuilder(root)
        probs = yield tree.request([0])
        (drawn,) = draw_children(WithoutReplacement, probs, count=self.branching, rng=rng)
        tokens = list(drawn.tokens)
        if len(tokens) >= 5:
            tokens.sort(key=lambda token: -float(probs[0, token]))
        if tokens:
            tree.add_children(0, tokens, drawn.proposal)
        return tree.finish()


class OneRowOfEight(TreePolicy):
    """A chain that drops unlikely tokens in the sixth of every eight streams, which the class numbers."""

    laws = frozenset({WithReplacement})
    streams: ClassVar[dict[int, tuple[int, Any]]] = {}

    def grow(self, root, rng):
        number, _ = self.streams.setdefault(id(rng), (len(self.streams), rng))
        return (yield from DropsUnlikelyWhen(lambda *_: number % 8 == 5, length=4).grow(root, rng))


class AfterManyCalls(DropsUnlikelyWhen):
    """A chain that drops unlikely tokens after many calls, which the class counts."""

    calls: ClassVar = [0]

    def grow(self, root, rng):
        self.calls[0] += 1
        return (yield from super().grow(root, rng))


@attrs.frozen
class AcceptsTheFourth(RecursiveRejection):
    """Accepts the fourth sibling at the root without a test."""

    def verify(self, tree, target_probs, rng):
        outcome = super().verify(tree, target_probs, rng)
        if len(outcome.path) > 1 or len(tree.children(0)) < 4:
            return outcome
        node = tree.children(0)[3]
        return type(outcome).of(tree, [0, node], extra=rng.choose(target_probs[node]), bonus=True)


@attrs.frozen
class BonusOfTheParent(RecursiveRejection):
    """Takes the bonus token of a long path from the row before the last."""

    def verify(self, tree, target_probs, rng):
        outcome = super().verify(tree, target_probs, rng)
        if not outcome.bonus or len(outcome.path) < 4:
            return outcome
        extra = rng.choose(target_probs[outcome.path[-2]])
        return type(outcome).of(tree, outcome.path, extra=extra, bonus=True)


REJECTION = RecursiveRejection()
LATE: dict[str, tuple[Any, Any]] = {
    "by depth": (DropsUnlikelyWhen(lambda depth, path, probs: depth >= 5), REJECTION),
    "by vocabulary": (DropsUnlikelyWhen(lambda depth, path, probs: len(probs) > 64), REJECTION),
    "by a token beyond small vocabularies": (
        DropsUnlikelyWhen(lambda depth, path, probs: path[-1] >= 100),
        REJECTION,
    ),
    "by a repeated path": (
        DropsUnlikelyWhen(lambda depth, path, probs: len(path) > 3 and len(set(path)) < len(path)),
        REJECTION,
    ),
    "by temperature: a flat draft": (
        DropsUnlikelyWhen(lambda depth, path, probs: float(probs.max()) < 0.15),
        REJECTION,
    ),
    "by ties": (
        DropsUnlikelyWhen(lambda depth, path, probs: len(probs.unique()) < len(probs)),
        REJECTION,
    ),
    "by a token before, as after an end of text": (
        DropsUnlikelyWhen(lambda depth, path, probs: 2 in path[:-1]),
        REJECTION,
    ),
    "by row, one of eight": (OneRowOfEight(), REJECTION),
    "by calls": (AfterManyCalls(lambda *_: AfterManyCalls.calls[0] > 400), REJECTION),
    "by length of text": (StopsLearningWell(lambda outcome: len(outcome.path), 60), REJECTION),
    "by rejections": (StopsLearningWell(lambda outcome: not outcome.bonus, 20), REJECTION),
    "by depth, another law": (CooledBelow(), REJECTION),
    "by vocabulary, the best of many": (TopOfMany(), REJECTION),
    "by budget": (PrunedBeyondBudget(), REJECTION),
    "by number of siblings, their order": (SortedSiblings(), REJECTION),
    "by number of siblings, the verifier": (SortedSiblings(4), AcceptsTheFourth()),
    "by length of the path, the verifier": (
        DropsUnlikelyWhen(lambda *_: False, length=6),
        BonusOfTheParent(),
    ),
}
