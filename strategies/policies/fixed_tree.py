"""A tree of fixed depth and branching under a node budget."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from draftwood import Deterministic, Growing, Proposal, Randomness, TreeBuilder, WithoutReplacement
from draftwood.base.errors import InvalidInput
from draftwood.base.validators import at_least, probability
from draftwood.strategies.laws import SingleLawPolicy, as_law


def as_branching(value: int | Sequence[int]) -> int | tuple[int, ...]:
    return value if isinstance(value, int) else tuple(value)


def fills_levels(policy: FixedTree, __: object, value: int | tuple[int, ...]) -> None:
    if isinstance(value, tuple) and len(value) != policy.depth:
        raise InvalidInput(
            f"branching {value} names {len(value)} levels and depth is {policy.depth}; make them agree."
        )
    if min((value,) if isinstance(value, int) else value, default=0) < 1:
        raise InvalidInput(f"branching is {value}; every level needs at least 1 child.")


@attrs.frozen
class FixedTree(SingleLawPolicy):
    """Every node of a level gets `branching` children until `depth` levels or `budget` nodes are reached.

    `branching` is one number, or one for every level: (3, 1) has three children at the root and one
    below each; it must then name `depth` levels.

    A path whose draft probability falls below `threshold` is pruned. Children that are a fixed function
    of the context (law `"top-k"`) are themselves dropped; a drawn child never is, since dropping it for
    its own probability would bias the output, but it gets no children.

    Source: DynaTree's fixed-tree baseline (section 4.3, appendix A), with its settings as defaults;
    SpecInfer's expansion (arXiv 2305.09781) with law `"with-replacement"`; RSD-C (RSD, algorithms 2 to 4)
    with one number for every level and law `"without-replacement"`.
    """

    depth: int = attrs.field(default=5, validator=at_least(1))
    branching: int | tuple[int, ...] = attrs.field(default=2, converter=as_branching, validator=fills_levels)
    budget: int = attrs.field(default=256, validator=at_least(1))
    threshold: float = attrs.field(default=0.0, validator=probability)
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law)
    source = "DynaTree, section 4.3; SpecInfer; RSD, algorithm 2 (RSD-C)"

    @property
    def branches(self) -> bool:  # type: ignore[override]
        return max(self.levels) > 1

    @property
    def levels(self) -> tuple[int, ...]:
        """Children of a node, level by level."""
        return self.branching if isinstance(self.branching, tuple) else (self.branching,) * self.depth

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree = TreeBuilder(root)
        level, path_probs = [0], {0: 1.0}  # path_probs: the draft's probability of the path to a node
        for branching in self.levels:
            # The room left depends on what was drawn before, never on a child's own token. A child that is
            # fixed by the context may yet be pruned, and then takes none of it.
            fixed = self.law is Deterministic
            room = None if fixed else self.budget + 1 - len(tree)
            drawn = yield tree.open(level, self.law, branching, total=room)
            below = []
            for node, siblings in zip(level, drawn, strict=True):
                chances = [path_probs[node] * chance for chance in siblings.chances]
                if fixed:
                    chances = [chance for chance in chances if chance >= self.threshold]
                chances = chances[: self.budget + 1 - len(tree)]
                nodes = tree.add_siblings(node, siblings, len(chances))
                path_probs.update(zip(nodes, chances, strict=True))
                below += [child for child in nodes if path_probs[child] >= self.threshold]
            if not below or len(tree) > self.budget:
                break
            level = below
        return tree.finish()
