"""The proof that a policy is not adaptive: how many children a node gets tells nothing of their tokens."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.laws.proposals import Proposal
from draftwood.protocols import TreePolicy
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.trees.tree import TokenTree

_NEGLIGIBLE = 1e-200
"""Weights below this have lost their digits; what happens there has no measurable law."""


@attrs.frozen
class _Last:
    """Siblings with nothing below them in a part of a tree: the last that were drawn there.

    Attributes:
        path: tokens from the root to their parent.
        tokens: their own, in drawn order.
        chance: of these tokens by their declared law.
    """

    path: tuple[int, ...]
    tokens: tuple[int, ...]
    chance: float


@attrs.frozen
class _Part:
    """A tree in which some nodes are cut to leaves, all their children left out or none.

    Attributes:
        key: all of it but the tokens of its last siblings; the number and the declared law of these too.
        drawn: it as nested tuples of tokens, the root's first.
        last: its last siblings; none is the bare root.
    """

    key: Any
    drawn: tuple[Any, ...]
    last: tuple[_Last, ...]


def assert_counts_settled(
    policy: TreePolicy, trees: Iterable[tuple[float, TokenTree]], tolerance: float
) -> None:
    """Prove by `trees`, all that `policy` may grow with their weights, that it is not adaptive.

    Let e(tree) be the law of what a verifier emits. One that looks at all siblings of a node at once is
    right in this: a childless node may be given K children by their law, and in the mean e stays as it was,
    e(tree) = sum over tokens of P(tokens) e(tree with children of these tokens). So where a policy grows
    its trees by such steps, whatever decides which node is next and how many children it gets, the mean of e
    is e(root), the target's law. Other policies may come to the same: all that counts is that the mean of e
    over their trees is e(root) for every e with that property. This proves exactly that.

    A *part* of a tree has some of its nodes cut to leaves. Take the last sibling sets of a part, those with
    nothing below them. The mean is e(root) for every such e if and only if, in every part,

    - where it has one last set: given the rest of the part and the number of these siblings, their tokens
      have their declared law;
    - where it has several: P(the part), as a function of their tokens, is a sum of terms in each of which
      the tokens of one of the sets have their law, whatever the others are. So it becomes 0 once each set's
      own law, times the sum over that set's tokens, has been taken from it.

    Raises:
        LawBroken: the message names the nodes whose children's numbers tell too much.
    """
    weights: dict[Any, dict[tuple[tuple[int, ...], ...], float]] = {}
    examples: dict[Any, dict[tuple[tuple[int, ...], ...], _Part]] = {}
    for weight, tree in trees:
        for part in _parts(tree, tree.tokens.tolist(), 0, ()):
            if not part.last:
                continue
            tokens = tuple(last.tokens for last in part.last)
            by_tokens = weights.setdefault(part.key, {})
            by_tokens[tokens] = by_tokens.get(tokens, 0.0) + weight
            examples.setdefault(part.key, {})[tokens] = part
    for key, by_tokens in weights.items():
        total = math.fsum(by_tokens.values())
        if total < _NEGLIGIBLE:
            continue
        left, values = _without_their_laws(by_tokens, examples[key])
        worst_index = left.abs().argmax()
        error = float(left.flatten()[worst_index]) / total
        drawn = sum(len(tokens) for tokens in next(iter(by_tokens)))
        if abs(error) > tolerance * drawn:
            at = torch.unravel_index(worst_index, left.shape)
            worst = [axis[int(number)] for axis, number in zip(values, at, strict=True)]
            _complain(policy, next(iter(examples[key].values())), worst, error)


def _without_their_laws(
    by_tokens: dict[tuple[tuple[int, ...], ...], float], examples: dict[tuple[tuple[int, ...], ...], _Part]
) -> tuple[Tensor, list[list[tuple[int, ...]]]]:
    """The weights with one axis for each set, less what has the set's law; and the tokens along every axis.

    Tokens that never came need no entry: what is missing there is over elsewhere.
    """
    chances: list[dict[tuple[int, ...], float]] = [{} for _ in next(iter(by_tokens))]
    for part in examples.values():
        for of_axis, last in zip(chances, part.last, strict=True):
            of_axis[last.tokens] = last.chance
    values = [sorted(of_axis) for of_axis in chances]
    left = torch.zeros([len(axis) for axis in values], dtype=torch.float64)
    for tokens, weight in by_tokens.items():
        left[tuple(axis.index(last_tokens) for axis, last_tokens in zip(values, tokens, strict=True))] = (
            weight
        )
    for number, (axis, of_axis) in enumerate(zip(values, chances, strict=True)):
        law = torch.tensor([of_axis[tokens] for tokens in axis], dtype=torch.float64)
        shape = [-1 if other == number else 1 for other in range(len(values))]
        left = left - law.view(shape) * left.sum(number, keepdim=True)
    return left, values


def _parts(tree: TokenTree, tokens: Sequence[int], node: int, above: tuple[int, ...]) -> Iterator[_Part]:
    """The parts of the subtree at `node`."""
    here = tokens[node]
    path = (*above, here)
    yield _Part(None, (here,), ())
    children = tree.children(node)
    if not children:
        return
    siblings = tuple(tokens[child] for child in children)
    law = tree.proposals[node]
    declared = _declared(law, len(siblings))
    below = [list(_parts(tree, tokens, child, path)) for child in children]
    for parts in itertools.product(*below):
        drawn = (here, *(part.drawn for part in parts))
        if any(part.last for part in parts):
            key = (declared, siblings, tuple(part.key for part in parts))
            yield _Part(key, drawn, tuple(itertools.chain.from_iterable(part.last for part in parts)))
        else:
            chance = math.prod(
                float(law.conditional(k, siblings[:k])[token]) for k, token in enumerate(siblings)
            )
            yield _Part(declared, drawn, (_Last(path, siblings, chance),))


def _declared(law: Proposal, count: int) -> Any:
    """Returns a key that differs between different declared laws of `count` siblings."""
    marginals = (law.marginal(k).double().round(decimals=12) for k in range(count))
    return type(law).__name__, count, tuple(p.numpy().tobytes() for p in marginals)


def _complain(policy: TreePolicy, part: _Part, tokens: Sequence[tuple[int, ...]], error: float) -> None:
    where = " and ".join(
        f"after {last.path} the children {drawn}" for last, drawn in zip(part.last, tokens, strict=True)
    )
    often = "more often" if error > 0 else "less often"
    raise LawBroken(
        f"{policy} declares adaptive = False, but {where} come {often} than by their law (off by "
        f"{abs(error):.2g}) in trees that hold so many of them as {part.drawn}: the number of a node's "
        "children tells of their tokens, or of what came below them; settle it before the first of them is "
        "drawn, or declare adaptive = True.",
        error=abs(error),
    )
