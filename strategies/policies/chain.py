"""A chain: plain speculative decoding."""

from __future__ import annotations

import attrs

from draftwood import Growing, Proposal, Randomness, TreeBuilder, WithoutReplacement
from draftwood.base.validators import at_least, probability
from draftwood.strategies.laws import SingleLawPolicy, as_law


@attrs.frozen
class Chain(SingleLawPolicy):
    """`length` tokens in a row, each drawn from the draft (or its most likely one, with law `"top-k"`).

    The chain ends early after a token whose own draft probability is below `stop_below`: that token
    stays, since dropping it for its probability would bias the output, and nothing is drafted after it.

    Source: Leviathan et al. 2023, algorithm 1 (arXiv 2211.17192); Chen et al. 2023 (arXiv 2302.01318).
    The stop is that of Draft & Verify (arXiv 2309.08168), which looks at the last token, not at the path.
    """

    length: int = attrs.field(default=5, validator=at_least(1))
    law: type[Proposal] = attrs.field(default=WithoutReplacement, converter=as_law)
    stop_below: float = attrs.field(default=0.0, validator=probability)
    branches = False
    source = "Leviathan et al. 2023, algorithm 1"

    def grow(self, root: int, rng: Randomness) -> Growing:
        tree, node = TreeBuilder(root), 0
        for _ in range(self.length):
            (drawn,) = yield tree.open([node], self.law, 1)
            if not drawn.tokens:
                break
            (node,) = tree.add_siblings(node, drawn)
            if drawn.chances[0] < self.stop_below:
                break
        return tree.finish()
