"""Samples a foreign sampler that judges rows together: in batches of several sizes and of mixed settings."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.samplers.continued_laws import Text
from draftwood.testing.samplers.returned_tokens import as_rows
from draftwood.testing.samplers.sampler_cases import Draft, SamplerCase

_BATCHES = (1, 3, 12, 100)
"""Rows of one call, in turns: an engine's batch grows and shrinks, and its ends may be judged otherwise."""

PLACES = ("first row of a batch", "last row of a batch")
"""Rows of a batch that are judged apart too."""


def judged_together(
    call: Callable[[SamplerCase], Any],
    possible: Sequence[Draft],
    rows: Tensor,
    *,
    uniforms: int,
    dtype: torch.dtype,
) -> Iterator[tuple[int, Text, int, str]]:
    """Yields the texts of drafts that are judged in batches.

    Args:
        call: calls the sampler on a batch.
        possible: the drafts.
        rows: int64 `[samples]`: the drafts that are judged, by their numbers.
        uniforms: how many each row is given.
        dtype: of the uniforms.

    Yields:
        The number of a draft, a text, how often it came, and the place among `PLACES` or "".

    Raises:
        InvalidInput: the sampler does not return one row of tokens for each draft.
        LawBroken: it does so only where a batch has other sizes.
    """
    shapes: dict[tuple[int, ...], list[int]] = {}
    for index, draft in enumerate(possible):
        shapes.setdefault(tuple(draft.case.parents.tolist()), []).append(index)
    understood = False
    for indices in shapes.values():
        cases = [possible[index].case for index in indices]
        stacked: dict[str, Any] = {
            name: torch.stack([getattr(case, name) for case in cases])
            for name in ("draft_tokens", "target_probs", "draft_probs", "target_logits")
        }
        mine = rows[torch.isin(rows, torch.tensor(indices))]
        judged = []
        for part in mine.split(_batch_sizes(len(mine))):
            at = torch.searchsorted(torch.tensor(indices), part)
            batch = attrs.evolve(
                cases[0],
                settings=tuple(cases[index].settings[0] for index in at.tolist()),
                uniforms=torch.rand(len(at), uniforms, dtype=dtype),
                **{name: tensors[at] for name, tensors in stacked.items()},
            )
            judged.append(_labelled(call(batch), part, understood))
            understood = True
        most = max((emitted.shape[1] for emitted in judged), default=0)
        padded = [
            torch.nn.functional.pad(emitted, (0, most - emitted.shape[1]), value=-1) for emitted in judged
        ]
        if not padded:
            continue
        distinct, counts = torch.cat(padded).unique(dim=0, return_counts=True)
        for (index, place, *row), count in zip(distinct.tolist(), counts.tolist(), strict=True):
            yield index, tuple(token for token in row if token >= 0), count, ("", *PLACES)[place]


def _labelled(returned: Any, drafts: Tensor, understood: bool) -> Tensor:
    """Returns a line for each row of a batch: its draft, its place among `PLACES`, its tokens."""
    try:
        emitted = as_rows(returned, len(drafts))
    except InvalidInput as error:
        if understood:  # so its form is known, and this batch is wrong
            raise LawBroken(str(error)) from error
        raise
    places = torch.zeros_like(drafts)
    if len(drafts) > 1:
        places[0], places[-1] = 1, 2
    return torch.cat([drafts.unsqueeze(1), places.unsqueeze(1), emitted], 1)


def _batch_sizes(rows: int) -> list[int]:
    """Returns the numbers of rows of the calls that judge so many."""
    sizes: list[int] = []
    for size in itertools.cycle(_BATCHES):
        left = rows - sum(sizes)
        if left <= size:
            return [*sizes, left] if left else sizes
        sizes.append(size)
    return sizes
