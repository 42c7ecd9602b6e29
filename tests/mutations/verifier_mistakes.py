"""Mistakes in verifiers, each with the verifier that is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from draftwood import Outcome, Proposal, Randomness, TokenTree
from draftwood.strategies.verifiers.class_ordered_rejection import ClassOrderedRejection
from draftwood.strategies.verifiers.class_ordered_traversal import ClassOrderedTraversal
from draftwood.strategies.verifiers.greedy_multi_path import GreedyMultiPath, _LastInOrder
from draftwood.strategies.verifiers.orders.class_order import ClassTries
from draftwood.strategies.verifiers.orders.class_window import ClassWindow, RemainingDraft
from draftwood.strategies.verifiers.residual import Residual, SiblingLaw
from draftwood.strategies.verifiers.traversal import Traversal
from draftwood.strategies.verifiers.typical import Typical
from tests.mutations.mistake import Mistake
from tests.mutations.verifiers import Judged, Tokenwise


class TargetForResidualInSingle(Tokenwise):
    def left(self, target: Tensor, draft: Tensor, index: int) -> Tensor:
        return target if target.dtype == torch.float32 else super().left(target, draft, index)


class WrongFromDepthTwo(Tokenwise):
    """Takes the target for the residual below the first level."""

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        tokens, path = tree.tokens.tolist(), [0]
        while children := tree.children(path[-1]):
            node = path[-1]
            target = target_probs[node]
            accepted, left = self.judge([tokens[c] for c in children], tree.proposals[node], target, rng)
            if accepted is None:
                left = left if len(path) < 3 else target
                return Outcome.of(tree, path, extra=rng.choose(left), bonus=False)
            path.append(children[accepted])
        return Outcome.of(tree, path, extra=rng.choose(target_probs[path[-1]]), bonus=True)


class WrongFromTheThirdSibling(Tokenwise):
    """Later siblings than the second are judged by the second's law."""

    def law(self, proposal: Proposal, index: int, earlier: Sequence[int]) -> Tensor:
        return proposal.conditional(min(index, 1), earlier[:1])


class FifthSiblingFree(Tokenwise):
    """A buffer of four siblings: later ones are accepted."""

    def chance(self, target: Tensor, draft: Tensor, token: int, index: int) -> float:
        return float(target[token] > 0) if index >= 4 else super().chance(target, draft, token, index)


class LikeliestFirst(Tokenwise):
    """Tries the siblings in the order of the target's wish, by the laws of their places."""

    def judge(self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness) -> Judged:
        order = sorted(range(len(tokens)), key=lambda index: -float(target[tokens[index]]))
        index, left = super().judge([tokens[one] for one in order], proposal, target, rng)
        return (None if index is None else order[index]), left


class DuplicatesOnce(Tokenwise):
    """Skips a sibling whose token was tried before."""

    def judge(self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness) -> Judged:
        places = [index for index, token in enumerate(tokens) if token not in tokens[:index]]
        index, left = super().judge([tokens[one] for one in places], proposal, target, rng)
        return (None if index is None else places[index]), left


class EpsilonBelow(Tokenwise):
    """Divides by the draft plus a small number, so as not to divide by zero."""

    def chance(self, target: Tensor, draft: Tensor, token: int, index: int) -> float:
        return min(1.0, float(target[token]) / (float(draft[token]) + 1e-5))


class TinyIsNothing(Tokenwise):
    """Takes target probabilities below a thousandth for nothing."""

    def chance(self, target: Tensor, draft: Tensor, token: int, index: int) -> float:
        return 0.0 if float(target[token]) < 1e-3 else super().chance(target, draft, token, index)


class SureIsGreedy(Tokenwise):
    """Where the target is nearly certain, its best token is taken without a draw."""

    def judge(self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness) -> Judged:
        if float(target.max()) < 0.95:
            return super().judge(tokens, proposal, target, rng)
        best = int(target.argmax())
        left = torch.zeros_like(target).index_fill_(0, torch.tensor(best), 1)
        return (list(tokens).index(best) if best in tokens else None), left


class ResidualOfTheTopFour(Tokenwise):
    """Keeps only the four largest entries of the residual."""

    def left(self, target: Tensor, draft: Tensor, index: int) -> Tensor:
        left = super().left(target, draft, index)
        best = left.topk(min(4, len(left)))
        return torch.zeros_like(left).index_put_((best.indices,), best.values)


class HalfPrecision(Tokenwise):
    """Compares in half precision where the target comes in float32."""

    def chance(self, target: Tensor, draft: Tensor, token: int, index: int) -> float:
        if target.dtype == torch.float32:
            target, draft = target.half().float(), draft.half().float()
        return super().chance(target, draft, token, index)


class SiblingsInARow(Tokenwise):
    """Takes it for granted that the children of a node are numbered one after another."""

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        return super().verify(_Contiguous.of(tree), target_probs, rng)


class _Contiguous(TokenTree):
    @classmethod
    def of(cls, tree: TokenTree) -> _Contiguous:
        return cls(tree.tokens[: tree.size], tree.parents[: tree.size], dict(tree.proposals.items()))

    def children(self, node: int) -> list[int]:
        right = super().children(node)
        return list(range(right[0], right[0] + len(right))) if right else []


class PaddingToo(Tokenwise):
    """Looks at the padding after the tree as if it were nodes."""

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        whole = TokenTree(tree.tokens[:], tree.parents[:], dict(tree.proposals.items()))
        rows = torch.cat([target_probs[: tree.size], target_probs[:1].expand(len(whole) - tree.size, -1)])
        outcome = super().verify(whole, rows, rng)
        return Outcome.of(tree, outcome.path, extra=outcome.extra, bonus=outcome.bonus)


class RemembersTheResidual(Tokenwise):
    """Keeps the residual of a rejection for the next call that rejects over the same tokens."""

    def __init__(self) -> None:
        object.__setattr__(self, "known", {})

    def judge(self, tokens: Sequence[int], proposal: Proposal, target: Tensor, rng: Randomness) -> Judged:
        accepted, left = super().judge(tokens, proposal, target, rng)
        if accepted is None:
            left = self.known.setdefault(tuple(tokens), left)  # type: ignore[attr-defined]
        return accepted, left


class OneStreamForAll(Tokenwise):
    """Judges all rows by the first row's stream."""

    def verify_rows(
        self, trees: Sequence[TokenTree], target_probs: Sequence[Tensor], rngs: Sequence[Randomness]
    ) -> list[Outcome]:
        rows = zip(trees, target_probs, strict=True)
        return [self.verify(tree, probs, rngs[0]) for tree, probs in rows]


class BonusEverywhere(Tokenwise):
    """Calls every extra token a bonus."""

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        outcome = super().verify(tree, target_probs, rng)
        return Outcome.of(tree, outcome.path, extra=outcome.extra, bonus=True)


class LastRowForTheBonus(Tokenwise):
    """Draws the bonus token from the last row of the pass."""

    def verify(self, tree: TokenTree, target_probs: Tensor, rng: Randomness) -> Outcome:
        outcome = super().verify(tree, target_probs, rng)
        if not outcome.bonus or outcome.path[-1] == len(tree) - 1:
            return outcome
        extra = rng.choose(target_probs[len(tree) - 1])
        return Outcome.of(tree, outcome.path, extra=extra, bonus=True)


class TypicalByWord(Typical):
    """Typical acceptance, which says that it is lossless."""

    lossless = True


class AdaptiveByWord(ClassOrderedTraversal):
    """Class order, which says that it holds on adaptive trees."""

    adaptive = True  # type: ignore[assignment]


_open, _window = ClassWindow.__dict__["open"].__func__, ClassTries._window
_seen = {"token": 0}


def _peeking_window(self: ClassTries, residual: Any, held: Any) -> Any:
    _seen["token"] = self.tokens[self._next]
    return _window(self, residual, held)


def _open_by_token(
    cls: type[ClassWindow], h: SiblingLaw, draft: RemainingDraft, *, further: int, **given: Any
) -> ClassWindow:
    return _open(cls, h, draft, further=further + 9 * (_seen["token"] % 2), **given)  # type: ignore[no-any-return]


def _verifier(name: str, story: str, wrong: Any, right: Any = Tokenwise) -> Mistake:
    return Mistake(name, story, "verifier", right, wrong)


def _last_depth(tree: TokenTree, node: int) -> int:
    """Returns the depth at which the chain below a node ends."""
    while children := tree.children(node):
        (node,) = children
    return int(tree.depths[node])


_child = _LastInOrder.child


def _paths_by_the_drawn_shape(self: _LastInOrder, node: int, here: Residual) -> tuple[int, SiblingLaw]:
    """Equal nodes are one path where others of the drawn chains are shorter."""
    siblings = self._tree.children(node)
    found = _child(self, node, here)
    if len(siblings) > 1 and len({_last_depth(self._tree, child) for child in siblings}) > 1:
        self._alike, self._count = [found[0]], 1
    return found


MISTAKES = [
    _verifier(
        "the target for the residual, in float32 only",
        "a branch by dtype that no float64 test runs",
        TargetForResidualInSingle,
    ),
    _verifier("wrong from depth 2 on", "tests of one level", WrongFromDepthTwo),
    Mistake(
        "class order that peeks at a later sibling's token",
        "the class must be chosen before the next token is seen",
        "verifier",
        ClassOrderedRejection,
        patches=[
            (ClassTries, "_window", _peeking_window),
            (ClassWindow, "open", classmethod(_open_by_token)),  # type: ignore[arg-type]
        ],
    ),
    Mistake(
        "paths told from other trees by the drawn shape",
        "a draft that is silent after some tokens ends chains early",
        "verifier",
        GreedyMultiPath,
        patches=[(_LastInOrder, "child", _paths_by_the_drawn_shape)],
    ),
    _verifier("wrong from the third sibling on", "a law kept from the second", WrongFromTheThirdSibling),
    _verifier("the fifth sibling is accepted", "a buffer of four", FifthSiblingFree),
    _verifier("siblings by the target's wish", "in the laws of their places", LikeliestFirst),
    _verifier("a duplicate is not tried again", "draws with replacement", DuplicatesOnce),
    _verifier("an epsilon in the denominator", "1e-5, against a division by zero", EpsilonBelow),
    _verifier("small target probabilities are nothing", "below a thousandth", TinyIsNothing),
    _verifier("greedy where the target is nearly certain", "above 0.95", SureIsGreedy),
    _verifier("the residual's four largest entries alone", "sparse kernels", ResidualOfTheTopFour),
    _verifier("half precision in the comparison, in float32 only", "a kernel's dtype", HalfPrecision),
    _verifier("siblings taken to be numbered in a row", "breadth-first trees alone", SiblingsInARow),
    _verifier("padding judged as nodes", "a captured pass runs any tree", PaddingToo),
    _verifier("a residual remembered from another call", "a cache by tokens", RemembersTheResidual),
    _verifier("one stream for all rows", "rngs[0]", OneStreamForAll),
    _verifier("every extra token called a bonus", "bonus says that the path ends in a leaf", BonusEverywhere),
    _verifier("the bonus from the last row of the pass", "[-1] for [path[-1]]", LastRowForTheBonus),
    _verifier("a token is accepted when it is likely enough", "typical acceptance", TypicalByWord),
    _verifier(
        "class order said to hold on adaptive trees",
        "it looks at two siblings at once",
        AdaptiveByWord,
        Traversal,
    ),
]
