"""DySpec's greedy tree: always draw where the draft expects the most."""

from __future__ import annotations

import heapq
from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import (
    Deterministic,
    Proposal,
    Randomness,
    Request,
    TokenTree,
    TreeBuilder,
    WithoutReplacement,
)
from draftwood.errors import InvalidInput
from draftwood.strategies.acceptance_vectors import (
    as_acceptance,
    certainty,
    conditional_acceptance,
    validate_acceptance,
)
from draftwood.strategies.laws import SingleLawPolicy, as_law
from draftwood.validators import at_least


def sampled_or_top(policy: object, __: object, law: type[Proposal]) -> None:
    if law not in (WithoutReplacement, Deterministic):
        raise InvalidInput(
            f"The trees of {type(policy).__name__} cannot be drawn by {law.__name__}; use "
            "'without-replacement' or 'top-k'."
        )


def sampled_alone(policy: GreedyTree, field: attrs.Attribute[Any], values: tuple[float, ...]) -> None:
    if values:
        validate_acceptance(policy, field, values)
        if policy.law is not WithoutReplacement:
            raise InvalidInput(
                "acceptance tells of drawn children; leave it out, or draw without replacement."
            )


class GreedyTree(SingleLawPolicy):
    """Drawn where the most is expected, so what a draw brought decides where the next one is."""

    law: type[Proposal]
    acceptance: tuple[float, ...]

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.law is WithoutReplacement


@attrs.frozen
class DySpec(GreedyTree):
    """`budget` nodes, each drawn where the draft's estimate of its acceptance is highest.

    A slot is room for the next child of a node; its value is the draft's probability that the
    verifier comes to judge it: that of the path, times the chance that the earlier siblings fail. The
    value is known before the token is drawn, so keeping the best slots biases nothing. With law
    `"top-k"` a slot takes the most likely token left instead of drawing one, and is worth that token's
    own probability: the tree then holds the `budget` most likely paths, which serves temperature 0 best.

    The estimate takes a child for accepted as often as the draft draws it. A draft that was distilled to
    guess well may not bear that out: the zoo's pair accepts about 40 % of the first children drawn with a
    probability below 0.9, however small it was, so that trees by these values are too wide. With a
    measured `acceptance` the k-th child, drawn with probability p from what its siblings left, is expected
    to be accepted with c + (1 - c) p¹⁶: c, the measured chance of a k-th child whose siblings failed, unless
    the draft is all but certain. (Of the powers of 2, 16 and 32 describe that pair best at temperature 0.6,
    8 and 16 at 1: `python -m benchmarks certainty`.)

    Attributes:
        budget: nodes in the tree.
        law: how children are drawn.
        acceptance: the chance of the first, second, ... child to be the accepted one, as for `Sequoia`;
            none is the paper's estimate, p itself.

    Source: DySpec, algorithm 1 (arXiv 2410.11744), with its lines 6 and 7 exchanged: a token is drawn
    before it is added. The draft is asked for all waiting nodes whenever one is needed; the tree is the
    same, with fewer calls than nodes.
    """

    budget: int = attrs.field(default=32, validator=at_least(1))
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law, validator=sampled_or_top)
    acceptance: tuple[float, ...] = attrs.field(default=(), converter=as_acceptance, validator=sampled_alone)
    source = "DySpec, algorithm 1"

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree = TreeBuilder(root)
        path_probs = [1.0]  # the draft's probability of the path to every node
        children: dict[int, Children] = {}
        waiting = [0]  # nodes whose distribution has not been asked for
        # (-value, node) of every node's next slot; nodes are numbered in drawn order, which breaks ties.
        # The value may be an upper bound: a slot is worth at most the path to its node.
        slots = [(-1.0, 0)]
        while slots and len(tree) <= self.budget:
            bound, node = slots[0]
            if node not in children:
                probs = yield tree.request(waiting)
                children.update(start_children(self.law, waiting, probs, self.budget, rng, self.acceptance))
                waiting = []
            value = -path_probs[node] * children[node].next_value
            if value > bound:
                heapq.heapreplace(slots, (value, node))
                continue
            heapq.heappop(slots)
            if value < 0:
                token, chance = children[node].draw()
                path_probs.append(path_probs[node] * chance)
                waiting.append(tree.add(node, token))
                heapq.heappush(slots, (-path_probs[-1], waiting[-1]))
                heapq.heappush(slots, (-path_probs[node] * children[node].next_value, node))
        for node, drawn in children.items():
            if drawn.tokens:
                tree.proposals[node] = drawn.proposal()
        return tree.finish()


class Children(ABC):
    """The children of one node as they are drawn.

    Attributes:
        tokens: those drawn so far.
        next_value: the value of the next slot relative to the path to the node; 0 when no token is left.
    """

    tokens: list[int]
    next_value: float

    @abstractmethod
    def draw(self) -> tuple[int, float]:
        """The next child's token and its value relative to the node: what its own children start from."""

    @abstractmethod
    def proposal(self) -> Proposal:
        """The law by which they were drawn."""


class _SampledChildren(Children):
    """Drawn without replacement, and worth their draft probability."""

    def __init__(self, p: Tensor, total: float, rng: Randomness) -> None:
        self.p, self.next_value, self.tokens, self.rng = p, total, [], rng

    def draw(self) -> tuple[int, float]:
        # Made anew for every draw: kept, it would hold twice the memory of `p` for every node of the tree.
        rest = self.p.to(torch.float64, copy=True)
        if self.tokens:
            rest[self.tokens] = 0
        token = self.rng.choose(rest)
        chance = float(rest[token])
        rest[token] = 0
        self.next_value = float(rest.sum())
        self.tokens.append(token)
        return token, chance

    def proposal(self) -> Proposal:
        return WithoutReplacement(self.p)


class _MeasuredChildren(Children):
    """Drawn without replacement, and worth what measured chances of acceptance promise."""

    def __init__(self, p: Tensor, total: float, rng: Randomness, chances: list[float]) -> None:
        self.sampled, self.chances = _SampledChildren(p, total, rng), chances
        self.tokens, self.next_value, self.slot = self.sampled.tokens, total, min(total, 1.0)

    def draw(self) -> tuple[int, float]:
        rank, left = len(self.tokens), self.sampled.next_value
        token, chance = self.sampled.draw()
        measured = self.chances[min(rank, len(self.chances) - 1)]
        accepted = measured + (1 - measured) * certainty(min(chance / left, 1.0))
        value, self.slot = self.slot * accepted, self.slot * (1 - accepted)
        self.next_value = self.slot if self.sampled.next_value > 0 else 0.0
        return token, value

    def proposal(self) -> Proposal:
        return self.sampled.proposal()


class _TopChildren(Children):
    def __init__(self, p: Tensor, values: list[float], ranking: list[int]) -> None:
        self.p, self.values, self.ranking, self.tokens = p, values, ranking, []
        self.next_value = values[0]

    def draw(self) -> tuple[int, float]:
        rank = len(self.tokens)
        self.tokens.append(self.ranking[rank])
        self.next_value = self.values[rank + 1] if rank + 1 < len(self.values) else 0.0
        return self.ranking[rank], self.values[rank]

    def proposal(self) -> Proposal:
        return Deterministic(self.tokens, self.p.shape[-1], self.p.dtype, self.p.device)


def start_children(
    law: type[Proposal],
    nodes: list[int],
    probs: Tensor,
    budget: int,
    rng: Randomness,
    acceptance: Sequence[float] = (),
) -> dict[int, Children]:
    """For every node, its children yet to be drawn from its row of `probs` `[nodes, vocab]`."""
    if law is WithoutReplacement:
        totals = probs.sum(-1, dtype=torch.float64).tolist()
        sampled = zip(nodes, probs, totals, rng.nodes(len(nodes)), strict=True)
        if acceptance:
            chances = list(conditional_acceptance(acceptance))
            return {node: _MeasuredChildren(p, total, own, chances) for node, p, total, own in sampled}
        return {node: _SampledChildren(p, total, own) for node, p, total, own in sampled}
    # One top-k and one transfer for all nodes; a node gets at most `budget` children.
    top = probs.topk(min(budget, probs.shape[-1]))
    rankings = zip(top.values.tolist(), top.indices.tolist(), strict=True)
    return {
        node: _TopChildren(p, *likeliest) for node, p, likeliest in zip(nodes, probs, rankings, strict=True)
    }
