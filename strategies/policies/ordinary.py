"""No tree: one target pass per token, by the same code and in the same batches as draft trees."""

from __future__ import annotations

import attrs

from draftwood import Growing, Randomness, TreeBuilder, TreePolicy


@attrs.frozen
class Ordinary(TreePolicy):
    """Drafts nothing, so that a round writes one token: ordinary decoding, to compare draft trees with.

    Source: none is needed; the verifier draws each token from the target's distribution.
    """

    laws = frozenset()
    branches = False
    source = "ordinary decoding"

    def grow(self, root: int, rng: Randomness) -> Growing:
        yield from ()  # a growth is a generator
        return TreeBuilder(root).finish()
