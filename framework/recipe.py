"""`Recipe`: a named method of the literature, assembled from registered parts."""

from __future__ import annotations

from typing import Any

import attrs

from draftwood.compatibility import check_strategy_fits
from draftwood.decoder import SpeculativeDecoder
from draftwood.protocols import TreePolicy, Verifier
from draftwood.sampling import SamplingParams


@attrs.frozen
class Recipe:
    """Policy and verifier of a named method, and what it asks of the draft.

    Attributes:
        policy: grows the trees.
        verifier: judges them.
        drafter: name of the registered drafter that the method was written for; any other serves too.
        draft_temperature: the draft's own; None: the target's, or 1 where that is 0.

    Raises:
        IncompatibleStrategy: the verifier cannot judge the policy's trees.
    """

    policy: TreePolicy
    verifier: Verifier
    drafter: str = "model"
    draft_temperature: float | None = None

    def __attrs_post_init__(self) -> None:
        check_strategy_fits(self.policy, self.verifier)

    def decoder(self, target: Any, drafter: Any) -> SpeculativeDecoder:
        """A decoder of this method for `target` and `drafter`, taken as `SpeculativeDecoder` takes them."""
        return SpeculativeDecoder(target, drafter, self.policy, self.verifier)

    def draft_sampling(self, sampling: SamplingParams) -> SamplingParams | None:
        """What `generate` takes as `draft_sampling` for this method beside `sampling`."""
        if self.draft_temperature is None:
            return None
        return attrs.evolve(sampling, temperature=self.draft_temperature)
