"""A chain: plain speculative decoding."""

from __future__ import annotations

from collections.abc import Generator

import attrs
from torch import Tensor

from draftwood import (
    Proposal,
    Randomness,
    Request,
    TokenTree,
    TreeBuilder,
    TreePolicy,
    WithoutReplacement,
    draw_children,
)
from draftwood.fields import at_least
from draftwood.strategies.laws import as_law


@attrs.frozen
class Chain(TreePolicy):
    """`length` tokens in a row, each drawn from the draft (or its most likely one, with law `"top-k"`).

    Source: Leviathan et al. 2023, algorithm 1 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318).
    """

    length: int = attrs.field(default=5, validator=at_least(1))
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law)
    branches = False
    source = "Leviathan et al. 2023, algorithm 1"

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return frozenset({self.law})

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree, node = TreeBuilder(root), 0
        for _ in range(self.length):
            probs = yield tree.request([node])
            (drawn,) = draw_children(self.law, probs, count=1, rng=rng)
            if not drawn.tokens:
                break
            (node,) = tree.add_children(node, drawn.tokens, drawn.proposal)
        return tree.finish()
