"""A tree whose shape is fixed beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from draftwood import Deterministic, Growing, Proposal, Randomness, TreeBuilder, WithoutReplacement
from draftwood.strategies.laws import SingleLawPolicy, as_law
from draftwood.strategies.policies.shapes import RankPath, Shape, as_shape, ranks_below


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
    def independent_paths(self) -> bool:  # type: ignore[override]
        below = ranks_below(self.shape)
        lengths = {
            len(node) + 1 for node, ranks in below.items() for rank in ranks if (*node, rank) not in below
        }
        return len(lengths) == 1 and sum(len(ranks) > 1 for ranks in below.values()) <= 1

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return any(len(ranks) > 1 for ranks in ranks_below(self.shape).values())

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree, ranks = TreeBuilder(root), ranks_below(self.shape)
        level: dict[RankPath, int] = {(): 0}
        while level := {path: node for path, node in level.items() if path in ranks}:
            wanted = [ranks[path] for path in level]
            fixed = self.law is Deterministic
            # A shape may skip ranks, whose tokens are left out.
            counts = [1 + some[-1] for some in wanted] if fixed else [len(some) for some in wanted]
            drawn = yield tree.open(list(level.values()), self.law, counts)
            below: dict[RankPath, int] = {}
            for (path, node), some, siblings in zip(level.items(), wanted, drawn, strict=True):
                if fixed:
                    siblings.pick(some)
                nodes = tree.add_siblings(node, siblings)
                order = _by_chance(siblings.chances) if self.sort else range(len(nodes))
                # What is missing is missing at the end, whatever the law.
                below |= {(*path, some[place]): child for place, child in zip(order, nodes, strict=True)}
            level = below
        return tree.finish()


def _by_chance(chances: Sequence[float]) -> list[int]:
    """The rank of every sibling by its draft probability, the likeliest first."""
    order = sorted(range(len(chances)), key=lambda index: -chances[index])
    ranks = [0] * len(order)
    for rank, index in enumerate(order):
        ranks[index] = rank
    return ranks
