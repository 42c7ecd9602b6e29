"""A chain: plain speculative decoding."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import attrs
import numpy as np
from torch import Tensor

from draftwood import (
    Proposal,
    Randomness,
    Request,
    RowGrowth,
    TokenTree,
    TreeBuilder,
    TreesBuilder,
    WithoutReplacement,
    draw_children,
)
from draftwood.randomness import UniformRandomness
from draftwood.row_growth import Level, aligned
from draftwood.strategies.laws import SingleLawPolicy, as_law
from draftwood.strategies.policies.level_draws import draw_level, drawn_at_once
from draftwood.validators import at_least, probability


@attrs.frozen
class Chain(SingleLawPolicy):
    """`length` tokens in a row, each drawn from the draft (or its most likely one, with law `"top-k"`).

    The chain ends early behind a token whose own draft probability is below `stop_below`: that token
    stays, since dropping it for its probability would bias the output, and nothing is drafted behind it.

    Source: Leviathan et al. 2023, algorithm 1 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318).
    The stop is that of Draft & Verify (arXiv 2309.08168), which looks at the last token, not at the path.
    """

    length: int = attrs.field(default=5, validator=at_least(1))
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law)
    stop_below: float = attrs.field(default=0.0, validator=probability)
    branches = False
    source = "Leviathan et al. 2023, algorithm 1"

    def grow(self, root: int, rng: Randomness) -> Generator[Request, Tensor, TokenTree]:
        tree, node = TreeBuilder(root), 0
        for _ in range(self.length):
            probs = yield tree.request([node])
            (drawn,) = draw_children(self.law, probs, count=1, rng=rng)
            if not drawn.tokens:
                break
            (node,) = tree.add_children(node, drawn.tokens, drawn.proposal)
            if drawn.chances[0] < self.stop_below:
                break
        return tree.finish()

    def grow_rows(self, roots: Sequence[int], rngs: Sequence[Randomness]) -> RowGrowth:
        if not drawn_at_once(rngs, self.law):
            return super().grow_rows(roots, rngs)
        return self._grow_levels(roots, rngs)

    def _grow_levels(self, roots: Sequence[int], rngs: Sequence[UniformRandomness]) -> RowGrowth:
        trees = TreesBuilder(roots)
        level = trees.roots
        for _ in range(self.length):
            probs = yield from trees.ask(level)
            one = np.ones_like(level.nodes)
            tokens, chances = draw_level(self.law, probs, rngs=rngs, counts=level.counts, wanted=one)
            new = trees.add(level.nodes, tokens[:, :, 0], tokens[:, :, 0] >= 0)
            level = Level(aligned(new, (new >= 0) & (chances[:, :, 0] >= self.stop_below)))
            if level.empty:
                break
        return trees.finish(self.law)
