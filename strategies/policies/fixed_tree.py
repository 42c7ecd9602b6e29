"""A tree of fixed depth and branching under a node budget."""

from __future__ import annotations

from collections.abc import Generator

import attrs
from torch import Tensor

from draftwood import (
    Deterministic,
    Proposal,
    Randomness,
    Request,
    TokenTree,
    TreeBuilder,
    TreePolicy,
    WithoutReplacement,
    draw_children,
)
from draftwood.fields import at_least, probability
from draftwood.strategies.laws import as_law


@attrs.frozen
class FixedTree(TreePolicy):
    """Every node of a level gets `branching` children until `depth` levels or `budget` nodes are reached.

    A path whose draft probability falls below `threshold` is pruned. Children that are a fixed function
    of the context (law `"top-k"`) are themselves dropped; a drawn child never is, since dropping it for
    its own probability would bias the output, but it gets no children.

    Source: DynaTree's fixed-tree baseline (section 4.3, appendix A), with its settings as defaults;
    SpecInfer's expansion (arXiv 2305.09781) with law `"with-replacement"`.
    """

    depth: int = attrs.field(default=5, validator=at_least(1))
    branching: int = attrs.field(default=2, validator=at_least(1))
    budget: int = attrs.field(default=256, validator=at_least(1))
    threshold: float = attrs.field(default=0.0, validator=probability)
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law)
    source = "DynaTree, section 4.3; SpecInfer"

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return frozenset({self.law})

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree = TreeBuilder(root)
        level, reach = [0], {0: 1.0}  # reach: the draft's probability of the path to a node
        for _ in range(self.depth):
            probs = yield tree.request(level)
            below = []
            # What is fixed by the context costs one top-k for the level.
            fixed = self.law is Deterministic
            drawn = draw_children(self.law, probs, count=self.branching, rng=rng) if fixed else []
            for place, node in enumerate(level):
                # The room left depends on nodes drawn before, never on these children's own tokens.
                room = self.budget + 1 - len(tree)
                if room < 1:
                    break
                if not fixed:
                    count = min(self.branching, room)
                    drawn += draw_children(self.law, probs[place : place + 1], count=count, rng=rng)
                chances = [reach[node] * chance for chance in drawn[place].chances[:room]]
                if fixed:
                    chances = [chance for chance in chances if chance >= self.threshold]
                tokens = drawn[place].tokens[: len(chances)]
                children = tree.add_children(node, tokens, drawn[place].proposal)
                reach.update(zip(children, chances, strict=True))
                below += [child for child in children if reach[child] >= self.threshold]
            if not below or len(tree) > self.budget:
                break
            level = below
        return tree.finish()
