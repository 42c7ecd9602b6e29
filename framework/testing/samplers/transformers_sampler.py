"""An adapter for the sampler of transformers' assisted generation."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.laws.proposals import Deterministic
from draftwood.testing.samplers.sampler_cases import SamplerCase
from draftwood.testing.samplers.sampler_runs import Sampler
from draftwood.testing.samplers.signatures import named


def transformers_sampler(*, assistant_ensemble_weight: float | None = None) -> Sampler:
    """The sampler of transformers' assisted generation, the installed version's own.

    It draws with `torch.rand_like` and `torch.multinomial`, so that it is enumerated:
    `prove_sampler(transformers_sampler())`. The whole of `generate` is enumerated by `torch_law`.

    Args:
        assistant_ensemble_weight: as in the generation config; below 1 it is lossy by intent.
    """
    from transformers.generation import utils

    function: Any = utils._speculative_sampling
    weight = (
        {} if assistant_ensemble_weight is None else {"assistant_ensemble_weight": assistant_ensemble_weight}
    )

    def sampler(case: SamplerCase) -> Tensor:
        if case.law is Deterministic:
            raise InvalidInput("Assisted generation draws its draft; give law=WithReplacement.")
        tokens, _ = function(
            case.draft_tokens.unsqueeze(0),
            case.draft_probs.log().unsqueeze(0),
            len(case.draft_tokens),
            case.target_probs.log().unsqueeze(0),
            **weight,
        )
        return tokens[0]  # type: ignore[no-any-return]

    return named(sampler, "transformers' assisted generation")
