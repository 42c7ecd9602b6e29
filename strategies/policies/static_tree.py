"""A tree whose shape is fixed beforehand."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import attrs
import numpy as np
import torch
from torch import Tensor

from draftwood import (
    Deterministic,
    DrawnChildren,
    Proposal,
    Randomness,
    Request,
    Requests,
    RowGrowth,
    TokenTree,
    TreeBatch,
    TreeBuilder,
    TreesBuilder,
    WithoutReplacement,
    draw_children,
)
from draftwood.ordered_draws import ChildDraws
from draftwood.randomness import NodeNoise, UniformRandomness
from draftwood.row_growth import Level, aligned
from draftwood.strategies.laws import SingleLawPolicy, as_law
from draftwood.strategies.policies.level_draws import Numbers, Values, draw_level, drawn_at_once
from draftwood.strategies.policies.shapes import RankPath, Shape, as_shape
from draftwood.strategies.policies.static_levels import level_paths, ranks_below, whole_tree


@attrs.frozen
class StaticTree(SingleLawPolicy):
    """One and the same shape in every round, with one draft call a level.

    With law `"top-k"` the child of rank r holds the draft's (r + 1)-th most likely token, and a shape that
    skips ranks leaves those tokens out. With the drawn laws a node gets as many children as the shape has
    there, in drawn order. Where a token has no probability, the child and what hangs below it are missing.

    With `sort` the ranks of drawn siblings go by the draft's probability of their tokens, so that a shape
    can give the likeliest of them the largest subtree. All siblings of a node are drawn before that, so
    their tokens decide which of them gets which children, and never which of them there are.

    Attributes:
        shape: a name in `SHAPES`, numbers of children such as `"2/1"`, the nodes' rank paths such as
            `((0,), (1,), (0, 0))`, or the nodes' parents such as `(-1, 0, 0, 1)`.
        law: how children are drawn.
        sort: whether a drawn child's rank is that of its probability among its siblings, the first drawn
            standing first where two are equal; else it is its place in drawn order.

    Source: Medusa, section 2.3.3 (arXiv 2401.10774), with law `"top-k"`; STree, section 5.3
    (arXiv 2505.14969).
    """

    shape: Shape = attrs.field(default="stree-a", converter=as_shape)
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law)
    sort: bool = attrs.field(default=False, validator=attrs.validators.instance_of(bool))
    source = "Medusa, section 2.3.3; STree, section 5.3"

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return any(len(ranks) > 1 for ranks in ranks_below(self.shape).values())

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree, ranks = TreeBuilder(root), ranks_below(self.shape)
        level: dict[RankPath, int] = {(): 0}
        while level := {path: node for path, node in level.items() if path in ranks}:
            probs = yield tree.request(list(level.values()))
            drawn = self._draw(probs, [ranks[path] for path in level], rng)
            below: dict[RankPath, int] = {}
            for (path, node), children in zip(level.items(), drawn, strict=True):
                nodes = tree.add_children(node, children.tokens, children.proposal)
                numbers = self._order(children.chances[: len(nodes)])
                # What is missing is missing at the end, whatever the law.
                below |= {(*path, ranks[path][i]): child for i, child in zip(numbers, nodes, strict=True)}
            level = below
        return tree.finish()

    def grow_rows(self, roots: Sequence[int], rngs: Sequence[Randomness]) -> RowGrowth:
        if not drawn_at_once(rngs, self.law):
            return super().grow_rows(roots, rngs)
        if self.law is Deterministic or self.sort:
            return self._growlevel_paths(roots, rngs)
        return self._growwhole_tree(roots, rngs)

    def _growwhole_tree(self, roots: Sequence[int], rngs: Sequence[UniformRandomness]) -> RowGrowth:
        """`_grow_levels` where every token can be drawn, so that all but the tokens is known beforehand.

        Nothing is taken from the streams before that is clear.
        """
        rows, whole = len(roots), whole_tree(self.shape)
        tokens = np.zeros((rows, len(whole.parents)), dtype=np.int64)
        tokens[:, 0] = roots
        noise = NodeNoise.ahead_of(rngs, len(whole.inner), whole.most)
        answers: list[Tensor] = []
        for level in whole.levels:
            asked = torch.from_numpy(tokens[:, whole.inner[level.asked]])
            counts = [asked.shape[1]] * rows
            probs = yield Requests(asked, level.above.expand(rows, -1), counts)
            answers.append(probs)
            draws = ChildDraws(probs, noise.of_nodes(level.asked), counts, at_once=level.most)
            drawn, _ = draws.up_to(np.broadcast_to(level.wanted, asked.shape))
            tokens[:, level.children] = children = drawn[:, level.path, level.rank]
            if children.min() < 0:
                return (yield from _resumed(self._growlevel_paths(roots, rngs), answers))
        for rng in rngs:
            rng.skip(len(whole.inner))
        return TreeBatch(
            tokens=tokens,
            parents=whole.parents[None].repeat(rows, 0),
            depths=whole.depths[None].repeat(rows, 0),
            counts=np.full(rows, tokens.shape[1]),
            law=self.law,
            levels=tuple(answers),
            asked=whole.requests[None].repeat(rows, 0),
        )

    def _growlevel_paths(self, roots: Sequence[int], rngs: Sequence[UniformRandomness]) -> RowGrowth:
        trees = TreesBuilder(roots, capacity=len(self.shape) + 1)
        level = trees.roots
        where = np.zeros_like(level.nodes)  # the number of every node's path among those of its level
        for paths in level_paths(self.shape):
            probs = yield from trees.ask(level)
            wanted = (paths.most_likely if self.law is Deterministic else paths.children)[where]
            tokens, chances = draw_level(self.law, probs, rngs=rngs, counts=level.counts, wanted=wanted)
            ranks, below = paths.ranks[where], paths.below[where]
            if self.law is Deterministic:
                at = np.maximum(ranks, 0)
                tokens = np.where(ranks >= 0, np.take_along_axis(tokens, at, 2), -1)
                chances = np.where(ranks >= 0, np.take_along_axis(chances, at, 2), 0)
            most = tokens.shape[2]
            tokens = tokens.reshape(len(roots), -1)
            new = trees.add(level.nodes.repeat(most, 1), tokens, tokens >= 0)
            place = below[:, :, :most]
            if self.sort:
                place = np.take_along_axis(place, _by_chance(chances), 2)
            place = place.reshape(new.shape)
            goes_on = (new >= 0) & (place >= 0)
            level, where = Level(aligned(new, goes_on)), aligned(place, goes_on, none=0)
            if level.empty:
                break
        return trees.finish(self.law)

    def _order(self, chances: Sequence[float]) -> list[int]:
        """For every child as drawn, the number of its rank among those of the shape."""
        return _by_chance(np.array(chances)).tolist() if self.sort else list(range(len(chances)))

    def _draw(self, probs: Tensor, ranks: Sequence[Sequence[int]], rng: Randomness) -> list[DrawnChildren]:
        """Children of these `ranks`, a list for every node of a level."""
        if self.law is not Deterministic:
            return draw_children(self.law, probs, count=[len(some) for some in ranks], rng=rng)
        most = 1 + max(some[-1] for some in ranks)
        return [
            _picked(likely, some, p)
            for likely, some, p in zip(
                draw_children(Deterministic, probs, count=most, rng=rng), ranks, probs, strict=True
            )
        ]


def _picked(likely: DrawnChildren, ranks: Sequence[int], p: Tensor) -> DrawnChildren:
    """The children of these ranks alone."""
    kept = [rank for rank in ranks if rank < len(likely.tokens)]
    tokens = [likely.tokens[rank] for rank in kept]
    law = Deterministic(tokens, p.shape[-1], p.dtype, p.device)
    return DrawnChildren(tokens, [likely.chances[rank] for rank in kept], law)


def _by_chance(chances: Values) -> Numbers:
    """The rank of every sibling by its draft probability, the likeliest first, `[..., siblings]`."""
    return np.argsort(np.argsort(-chances, axis=-1, kind="stable"), axis=-1)


def _resumed(growing: RowGrowth, answers: Sequence[Tensor]) -> RowGrowth:
    """`growing`, whose first requests have these answers."""
    answered = iter(answers)
    request = next(growing)
    while True:
        probs = next(answered, None)
        if probs is None:
            probs = yield request
        try:
            request = growing.send(probs)
        except StopIteration as finished:
            return finished.value  # type: ignore[no-any-return]
