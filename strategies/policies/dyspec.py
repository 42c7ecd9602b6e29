"""DySpec's greedy tree: always draw where the draft expects the most."""

from __future__ import annotations

import heapq
from collections.abc import Generator

import attrs
import torch
from torch import Tensor

from draftwood import Deterministic, Proposal, Randomness, Request, TokenTree, TreeBuilder, TreePolicy, WithoutReplacement
from draftwood.errors import InvalidInput
from draftwood.strategies.laws import as_law
from draftwood.strategies.options import at_least


def _drawn_or_top(_: object, field: object, law: type[Proposal]) -> None:
    if law not in (WithoutReplacement, Deterministic):
        raise InvalidInput(f"DySpec cannot draw by {law.__name__}; use 'without-replacement' or 'top-k'.")


@attrs.frozen
class DySpec(TreePolicy):
    """`budget` nodes, each drawn where the draft's estimate of its acceptance is highest.

    A slot is a place for the next child of a node; its value is the draft's probability that the
    verifier comes to judge it: that of the path, times the chance that the earlier siblings fail. The
    value is known before the token is drawn, so keeping the best slots biases nothing. With law
    `"top-k"` a slot takes the most likely token left instead of drawing one, which serves
    temperature 0 best.

    Source: DySpec, algorithm 1 (arXiv 2410.11744), with its lines 6 and 7 exchanged: a token is drawn
    before it is added. The draft is asked for all waiting nodes whenever one is needed; the tree is the
    same, with fewer calls than nodes.
    """

    budget: int = attrs.field(default=32, validator=at_least(1))
    law: type[Proposal] = attrs.field(
        default=WithoutReplacement, converter=as_law, validator=_drawn_or_top
    )
    source = "DySpec, algorithm 1"

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return frozenset({self.law})

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.law is WithoutReplacement

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree = TreeBuilder(root)
        children: dict[int, _Children] = {}
        waiting = [0]  # nodes whose distribution has not been asked for
        slots = [(-1.0, 0)]  # (-value, node); nodes are numbered in drawn order, which breaks ties
        while slots and len(tree) <= self.budget:
            value, node = slots[0]
            if node not in children:
                probs = yield tree.request(waiting)
                children.update(self._start(waiting, probs))
                waiting = []
            heapq.heappop(slots)
            drawn = children[node].draw(rng)
            if drawn is None:
                continue
            token, chance = drawn
            child = tree.add(node, token)
            waiting.append(child)
            heapq.heappush(slots, (value * chance, child))
            heapq.heappush(slots, (value * (1 - chance), node))
        for node, drawn_here in children.items():
            if drawn_here.tokens:
                tree.proposals[node] = drawn_here.proposal()
        return tree.finish()

    def _start(self, nodes: list[int], probs: Tensor) -> dict[int, _Children]:
        if self.law is WithoutReplacement:
            return {node: _Drawn(p) for node, p in zip(nodes, probs, strict=True)}
        top = probs.topk(min(self.budget, probs.shape[-1]))
        ranked = zip(top.values.tolist(), top.indices.tolist(), strict=True)
        return {node: _Top(p, *both) for node, p, both in zip(nodes, probs, ranked, strict=True)}


class _Children:
    """The children of one node as they are drawn."""

    tokens: list[int]

    def draw(self, rng: Randomness) -> tuple[int, float] | None:
        """The next child's token and its probability given the earlier ones; None if none is left."""
        raise NotImplementedError

    def proposal(self) -> Proposal:
        raise NotImplementedError


class _Drawn(_Children):
    def __init__(self, p: Tensor) -> None:
        self.p, self.rest, self.tokens = p, p.to(torch.float64, copy=True), []

    def draw(self, rng: Randomness) -> tuple[int, float] | None:
        total = float(self.rest.sum())
        if not total > 0:
            return None
        token = rng.choose(self.rest)
        chance = float(self.rest[token]) / total
        self.rest[token] = 0
        self.tokens.append(token)
        return token, chance

    def proposal(self) -> Proposal:
        return WithoutReplacement(self.p)


class _Top(_Children):
    def __init__(self, p: Tensor, values: list[float], ranked: list[int]) -> None:
        self.p, self.values, self.ranked, self.tokens, self.left = p, values, ranked, [], 1.0

    def draw(self, rng: Randomness) -> tuple[int, float] | None:
        place = len(self.tokens)
        if place >= len(self.ranked) or not self.values[place] > 0 or not self.left > 0:
            return None
        chance = min(self.values[place] / self.left, 1.0)
        self.left -= self.values[place]
        self.tokens.append(self.ranked[place])
        return self.ranked[place], chance

    def proposal(self) -> Proposal:
        return Deterministic(self.tokens, self.p.shape[-1], self.p.dtype, self.p.device)
