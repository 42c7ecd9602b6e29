"""Trees of a fixed shape in every law: what a verifier is proved on, with no policy of anybody's."""

from __future__ import annotations

from collections.abc import Generator
from typing import TypeAlias

import attrs
from torch import Tensor

from draftwood.drawing import draw_children
from draftwood.proposals import Proposal
from draftwood.protocols import Request, TreePolicy
from draftwood.randomness import Randomness
from draftwood.tree import TokenTree, TreeBuilder

Shape: TypeAlias = "tuple[Shape, ...]"
"""The shapes of a node's children in drawn order: `()` is a leaf, `((), ())` a node with two leaves."""

CHAINS: dict[str, Shape] = {"one": ((),), "chain of 2": (((),),)}
BRANCHING: dict[str, Shape] = {
    "two": ((), ()),
    "three": ((), (), ()),
    "two, the first with a child": (((),), ()),
    "two, the second with a child": ((), ((),)),
    "one with two": (((), ()),),
}


@attrs.frozen
class Shaped(TreePolicy):
    """Grows `shape`, with children drawn by `law`; fewer where the law runs out of tokens.

    With `adaptive`, siblings behind one that holds an odd token are left out.
    """

    shape: Shape
    law: type[Proposal]
    adaptive: bool = False
    local = True

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return frozenset({self.law})

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree = TreeBuilder(root)
        level = [(0, self.shape)]
        while level := [(node, shape) for node, shape in level if shape]:
            probs = yield tree.request([node for node, _ in level])
            below: list[tuple[int, Shape]] = []
            for (node, shape), p in zip(level, probs, strict=True):
                (drawn,) = draw_children(self.law, p.unsqueeze(0), count=len(shape), rng=rng)
                odd = next((k for k, token in enumerate(drawn.tokens) if token % 2), len(shape))
                tokens = drawn.tokens[: odd + 1] if self.adaptive else drawn.tokens
                below += zip(tree.add_children(node, tokens, drawn.proposal), shape, strict=False)
            level = below
        return tree.finish()
