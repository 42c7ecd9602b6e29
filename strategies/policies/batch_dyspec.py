"""DySpec's greedy tree with one budget for the trees of all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from draftwood import BatchPolicy, Growing, Randomness
from draftwood.strategies.policies.layered_dyspec import LargestValues, LayeredDySpec


@attrs.frozen
class BatchDySpec(LayeredDySpec, BatchPolicy[LargestValues]):
    """The trees of `LayeredDySpec` for all rows together, under one budget.

    Nodes go where the draft expects the most, in whichever row that is: a row whose draft is unsure gets
    few, and leaves them to the others. So a batch has as many nodes as its pass can score at little cost,
    however many rows share it.

    A slot's value is fixed before its token is known, and is at least that of every slot below it. Whether a
    node stays depends on the values of larger slots only, in any row, so law P holds for all rows jointly.
    The law of a row's text is the target's; the text that a seed gives may change with the other rows.

    Attributes:
        budget: nodes in the trees of all rows of a round together.
        depth, threshold, law, acceptance: as for `LayeredDySpec`.

    Source: draftwood; AdaServe (arXiv 2501.12162) shares a budget among requests by their goals.
    """

    source = "draftwood (one budget for all rows)"

    def share(self, states: Sequence[Any]) -> Sequence[LargestValues]:
        largest = LargestValues(self.budget, self.threshold, rows=len(states))
        return [largest] * len(states)

    def grow(self, root: int, rng: Randomness, share: LargestValues | None = None) -> Growing:
        return self.layers(root, share or LargestValues(self.budget, self.threshold), self.depth)
