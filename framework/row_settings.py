"""How the tokens of one row are chosen, and the distributions of rows that are chosen differently."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isnan

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.round_records import TokenDetails
from draftwood.sampling import SamplingParams
from draftwood.scratch import Scratch


@attrs.frozen
class RowSettings:
    """How the tokens of one row are chosen, and what its records hold.

    Attributes:
        sampling: how the target's logits become the distribution that is sampled.
        draft_sampling: the same for the draft.
        keep: what is recorded of every token.
    """

    sampling: SamplingParams = attrs.field(factory=SamplingParams)
    draft_sampling: SamplingParams = attrs.field(factory=SamplingParams)
    keep: TokenDetails = attrs.field(factory=TokenDetails)

    @classmethod
    def of(
        cls,
        sampling: SamplingParams,
        draft_sampling: SamplingParams | None = None,
        keep: TokenDetails | None = None,
    ) -> RowSettings:
        """Returns settings whose draft is sampled as the target is unless `draft_sampling` says otherwise.

        At temperature 0 the default is the draft's plain distribution, whose probabilities shape the tree.
        """
        if draft_sampling is None:
            greedy = sampling.temperature == 0
            draft_sampling = attrs.evolve(sampling, temperature=1.0) if greedy else sampling
        return cls(sampling, draft_sampling, keep or TokenDetails())


def shared(params: Sequence[SamplingParams | None]) -> SamplingParams | None:
    """Returns the parameters of all rows, or None where they differ."""
    first = params[0]
    return first if all(one is first or one == first for one in params) else None


def proposals(
    params: Sequence[SamplingParams | None], logits: Float[Tensor, "rows *nodes vocab"], scratch: Scratch
) -> Float[Tensor, "rows *nodes vocab"]:
    """Returns `SamplingParams.proposals` of every row by its own parameters, `params[i]` for row i.

    A row without parameters is the caller's to fill.
    """
    if (same := shared(params)) is not None:
        return same.proposals(logits, scratch)
    cooled = _cooled(params, logits, scratch)
    if cooled is not None and logits.device.type != "cpu":
        return cooled.masked_fill_(logits.amax(-1, keepdim=True) == -torch.inf, 0)
    if cooled is not None and not isnan(cooled[..., 0].sum()):
        return cooled
    probs = _taken(logits, scratch)
    for one, rows in _runs(params):
        one.proposals(logits[rows], scratch, out=probs[rows])
    return probs


def targets(
    params: Sequence[SamplingParams | None], logits: Float[Tensor, "rows *nodes vocab"], scratch: Scratch
) -> Float[Tensor, "rows *nodes vocab"]:
    """Returns `SamplingParams.targets` of every row by its own parameters, `params[i]` for row i.

    A row without parameters is the caller's to fill.
    """
    if (same := shared(params)) is not None:
        return same.targets(logits, scratch)
    if (cooled := _cooled(params, logits, scratch)) is not None:
        return cooled
    probs = _taken(logits, scratch)
    for one, rows in _runs(params):
        one.targets(logits[rows], scratch, out=probs[rows])
    return probs


def _cooled(params: Sequence[SamplingParams | None], logits: Tensor, scratch: Scratch) -> Tensor | None:
    """The softmax of all rows at once, where they differ in nothing but a temperature above 0."""
    plain = [one.temperature for one in params if one is not None and one.is_softmax]
    if len(plain) < len(params):
        return None
    probs = _taken(logits, scratch)
    temperatures = torch.tensor(plain, dtype=probs.dtype).to(logits.device, non_blocking=True)
    scores = torch.div(logits.to(probs.dtype), temperatures.view(-1, *[1] * (logits.dim() - 1)), out=probs)
    return torch.softmax(scores, -1, out=probs if logits.device.type == "cpu" else None)


def _runs(params: Sequence[SamplingParams | None]) -> Iterator[tuple[SamplingParams, slice]]:
    """Neighbouring rows of equal parameters, whose logits are one piece of memory."""
    start = 0
    for row in range(1, len(params) + 1):
        first = params[start]
        if row == len(params) or (first is not params[row] and first != params[row]):
            if first is not None:
                yield first, slice(start, row)
            start = row


def _taken(logits: Tensor, scratch: Scratch) -> Tensor:
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return scratch.take(tuple(logits.shape), dtype=dtype, device=logits.device)
