"""A tree whose shape is fixed beforehand."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import attrs
from torch import Tensor

from draftwood import (
    Deterministic,
    Drawn,
    Proposal,
    Randomness,
    Request,
    TokenTree,
    TreeBuilder,
    WithoutReplacement,
    draw_children,
)
from draftwood.strategies.laws import SingleLawPolicy, as_law
from draftwood.strategies.policies.shapes import Place, Shape, as_shape


@attrs.frozen
class StaticTree(SingleLawPolicy):
    """One and the same shape in every round, with one draft call a level.

    With law `"top-k"` the child of rank r holds the draft's (r + 1)-th most likely token, and a shape that
    skips ranks leaves those tokens out. With the drawn laws a node gets as many children as the shape has
    there, in drawn order. Where a token has no probability, the child and what hangs below it are missing.

    Attributes:
        shape: a name in `SHAPES`, the nodes' places such as `((0,), (1,), (0, 0))`, or the nodes' parents
            such as `(-1, 0, 0, 1)`.
        law: how children are drawn.

    Source: Medusa, section 2.3.3 (arXiv 2401.10774), with law `"top-k"`; STree, section 5.3
    (arXiv 2505.14969).
    """

    shape: Shape = attrs.field(default="stree-a", converter=as_shape)
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law)
    source = "Medusa, section 2.3.3; STree, section 5.3"

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return any(len(ranks) > 1 for ranks in _ranks(self.shape).values())

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree, ranks = TreeBuilder(root), _ranks(self.shape)
        level: dict[Place, int] = {(): 0}
        while level := {place: node for place, node in level.items() if place in ranks}:
            probs = yield tree.request(list(level.values()))
            drawn = self._draw(probs, [ranks[place] for place in level], rng)
            below: dict[Place, int] = {}
            for (place, node), children in zip(level.items(), drawn, strict=True):
                nodes = tree.add_children(node, children.tokens, children.proposal)
                # What is missing is missing at the end, whatever the law.
                below |= {(*place, rank): child for rank, child in zip(ranks[place], nodes, strict=False)}
            level = below
        return tree.finish()

    def _draw(self, probs: Tensor, wanted: Sequence[Sequence[int]], rng: Randomness) -> list[Drawn]:
        """Children of the ranks `wanted` for every node of a level."""
        if self.law is not Deterministic:
            return draw_children(self.law, probs, count=[len(ranks) for ranks in wanted], rng=rng)
        most = 1 + max(ranks[-1] for ranks in wanted)
        return [
            _picked(likely, ranks, p)
            for likely, ranks, p in zip(
                draw_children(Deterministic, probs, count=most, rng=rng), wanted, probs, strict=True
            )
        ]


def _picked(likely: Drawn, ranks: Sequence[int], p: Tensor) -> Drawn:
    """The children of these ranks alone."""
    kept = [rank for rank in ranks if rank < len(likely.tokens)]
    tokens = [likely.tokens[rank] for rank in kept]
    law = Deterministic(tokens, p.shape[-1], p.dtype, p.device)
    return Drawn(tokens, [likely.chances[rank] for rank in kept], law)


def _ranks(shape: Shape) -> dict[Place, list[int]]:
    """For every place with children, their ranks."""
    ranks: dict[Place, list[int]] = {}
    for *above, rank in shape:
        ranks.setdefault(tuple(above), []).append(rank)
    return ranks
