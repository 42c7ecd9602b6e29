"""Sampling settings of one row, and the distributions of rows with different settings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.base.scratch import Scratch
from draftwood.decoding.round_records import TokenDetails
from draftwood.distributions.sampling import SamplingParams, nothing_proposed


@attrs.frozen
class RowSettings:
    """Settings for the choice of one row's tokens, and for its records.

    Attributes:
        sampling: settings that turn the target's logits into the sampled distribution.
        draft_sampling: the same settings for the draft.
        keep: the details that are recorded of every token.
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
    for one in params:
        if one is not first and one != first:
            return None
    return first


class Proposals:
    """The draft's distributions of all rows, each by its row's own parameters."""

    def __init__(self, params: Sequence[SamplingParams | None]) -> None:
        """Distributions by `params[i]` for row i; the caller fills in a row that has None."""
        self._params, self._shared = params, shared(params)

    def of(
        self,
        logits: Float[Tensor, "rows nodes *drafters vocab"],
        scratch: Scratch,
        *,
        counts: Sequence[int],
    ) -> Float[Tensor, "rows nodes *drafters vocab"]:
        """Returns `SamplingParams.proposals` of every row, in `scratch`.

        Nodes after the first `counts[i]` are padding, with the logits that drafters give it: -inf.
        """
        same, on_cpu = self._shared, logits.device.type == "cpu"
        whole = not on_cpu or min(counts) == logits.shape[1]
        if same is not None and (whole or not same.is_filtered_softmax):
            return same.proposals(logits, scratch)
        groups = _groups(self._params)
        if on_cpu:
            probs = _of_nodes(groups, logits, scratch, counts=counts)
        else:
            probs = _cooled(self._params, logits, scratch)
        sound = nothing_proposed(probs, logits)
        for one, rows in groups:
            written = one.is_softmax or (on_cpu and one.is_filtered_softmax)
            if not (sound and written):
                probs[rows] = one.proposals(logits[rows], scratch)
        return probs


def targets(
    params: Sequence[SamplingParams | None], logits: Float[Tensor, "rows *nodes vocab"], scratch: Scratch
) -> Float[Tensor, "rows *nodes vocab"]:
    """Returns `SamplingParams.targets` of every row by its own parameters, `params[i]` for row i.

    A row without parameters is the caller's to fill.
    """
    if (same := shared(params)) is not None:
        return same.targets(logits, scratch)
    probs = _cooled(params, logits, scratch)
    for one, rows in _groups(params):
        if not one.is_softmax:
            probs[rows] = one.targets(logits[rows], scratch)
    return probs


def _cooled(params: Sequence[SamplingParams | None], logits: Tensor, scratch: Scratch) -> Tensor:
    """The softmax of all rows at once, each over its temperature; that of others means nothing."""
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    probs = scratch.take(tuple(logits.shape), dtype=dtype, device=logits.device)
    known = [one.temperature if one is not None and one.is_softmax else None for one in params]
    different = {temperature for temperature in known if temperature is not None} or {1.0}
    divisor: Any = next(iter(different))
    if len(different) > 1:
        by_row = torch.tensor([temperature or 1.0 for temperature in known], dtype=dtype)
        divisor = by_row.to(logits.device, non_blocking=True).view(-1, *[1] * (logits.dim() - 1))
    scores = torch.div(logits.to(dtype), divisor, out=probs)
    return torch.softmax(scores, -1, out=probs if logits.device.type == "cpu" else None)


def _of_nodes(
    groups: Sequence[tuple[SamplingParams, list[int]]],
    logits: Tensor,
    scratch: Scratch,
    *,
    counts: Sequence[int],
) -> Tensor:
    """The softmaxes and filters of all nodes but padding, which gets 0, on a CPU.

    Rows end at different depths, so that padding may be most of the nodes.
    """
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    probs = scratch.take(tuple(logits.shape), dtype=dtype, device=logits.device)
    of_nodes, into = logits.flatten(0, 1), probs.flatten(0, 1)
    slots = np.arange(into.shape[0]).reshape(len(counts), -1)
    is_node = np.arange(logits.shape[1]) < np.asarray(counts)[:, None]
    into.index_fill_(0, torch.from_numpy(slots[~is_node]), 0)
    for params, rows in groups:
        if params.is_filtered_softmax:
            at = torch.from_numpy(slots[rows][is_node[rows]])
            into.index_copy_(0, at, params.targets(of_nodes.index_select(0, at), scratch))
    return probs


def _groups(params: Sequence[SamplingParams | None]) -> list[tuple[SamplingParams, list[int]]]:
    """The rows of equal parameters."""
    groups: list[tuple[SamplingParams, list[int]]] = []
    for row, one in enumerate(params):
        if one is None:
            continue
        rows = next((rows for other, rows in groups if other is one or other == one), None)
        if rows is None:
            groups.append((one, [row]))
        else:
            rows.append(row)
    return groups
