"""From the fields of a request to how its rows are sampled."""

from __future__ import annotations

import attrs
from torch import Tensor, ones_like, zeros_like

from draftwood import DraftwoodError, SamplingParams
from openai_protocol.refused import Refused
from openai_protocol.schema import Asked


@attrs.frozen
class Penalties:
    """A logits processor: OpenAI's penalties on tokens that were written already.

    The score of a token that was written c > 0 times is lowered by `presence + c * frequency`. That depends
    on the prefix and the scores only, so a tree of drafts can follow it.

    Attributes:
        start: tokens of the prompt, which do not count.
    """

    start: int
    presence: float
    frequency: float

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Returns scores `[nodes, vocab]` for prefixes `[nodes, length]`."""
        written = input_ids[:, self.start :]
        counts = zeros_like(scores).scatter_add_(1, written, ones_like(written, dtype=scores.dtype))
        return scores - self.frequency * counts - self.presence * (counts > 0)


def sampling(asked: Asked, *, temperature: float, start: int) -> SamplingParams:
    """Returns the settings by which the rows of a request are sampled.

    Args:
        temperature: where the request has none.
        start: tokens of the prompt.

    Raises:
        Refused: a setting that cannot be computed with.
    """
    presence, frequency = asked.presence_penalty or 0.0, asked.frequency_penalty or 0.0
    try:
        return SamplingParams(
            temperature=temperature if asked.temperature is None else asked.temperature,
            top_k=max(asked.top_k, 0) if asked.top_k is not None else None,
            top_p=asked.top_p,
            min_p=asked.min_p,
            processors=(Penalties(start, presence, frequency),) if presence or frequency else (),
        )
    except DraftwoodError as error:
        raise Refused(400, str(error)) from None
