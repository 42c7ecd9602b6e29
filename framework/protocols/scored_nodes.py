"""`ScoredNodes`: what the target said of all nodes of a round."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
from jaxtyping import Float, Int
from torch import Tensor


@attrs.frozen(eq=False)
class ScoredNodes:
    """All nodes that the target scored in a round, accepted or not, with its logits after each.

    Attributes:
        tokens: `[rows, nodes]` int64 on the CPU, the root first; beyond `counts` they are padding.
        parents: `[rows, nodes]` int64 on the CPU, places of the nodes' parents; -1 at the root.
        counts: nodes of every row; 0 for a row that takes no part.
        logits: `[rows, nodes, vocab]`, before any processor, on the target's device. They belong to the loop:
            they are not written to, and not kept.
    """

    tokens: Int[Tensor, "rows nodes"]
    parents: Int[Tensor, "rows nodes"]
    counts: Sequence[int]
    logits: Float[Tensor, "rows nodes vocab"]

    def __iter__(self) -> Iterator[tuple[list[int], list[int], Tensor]]:
        """Yields tokens, parents and logits `[nodes, vocab]` of every row, without padding."""
        for row, count in enumerate(self.counts):
            yield (
                self.tokens[row, :count].tolist(),
                self.parents[row, :count].tolist(),
                self.logits[row, :count],
            )
