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

_TOO_ALIKE = 8.0
"""Standard deviations by which rows of a batch agree more often than independent rows, to be dependent."""

_LEAST_VARIANCE = 100.0
"""Variance of the number of agreements below which it is not told from that of independent rows."""

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
) -> Iterator[tuple[int, Text, int, tuple[str, ...]]]:
    """Yields the texts of drafts that are judged in batches.

    A test of samples takes them as independent. Where rows of a batch share random numbers, so that they
    agree more often than independent rows, only one row of each batch counts among all rows.

    Args:
        call: calls the sampler on a batch.
        possible: the drafts.
        rows: int64 `[samples]`: the drafts that are judged, by their numbers.
        uniforms: how many each row is given.
        dtype: of the uniforms.

    Yields:
        The number of a draft, a text, how often it came, and the groups in which it counts: "" for all rows,
        and its place among `PLACES`.

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
        lines, sizes = torch.cat(padded), torch.tensor([len(emitted) for emitted in padded])
        counting = torch.ones(len(lines), 1, dtype=torch.int64)
        if _depend(lines, sizes):
            counting = torch.zeros_like(counting)
            counting[sizes.cumsum(0) - 1 - (torch.rand(len(sizes)) * sizes).long()] = 1
        distinct, counts = torch.cat([counting, lines], 1).unique(dim=0, return_counts=True)
        for (counts_for_all, index, place, *row), count in zip(
            distinct.tolist(), counts.tolist(), strict=True
        ):
            groups = ("",) * counts_for_all + PLACES[place - 1 : place] * (place > 0)
            yield index, tuple(token for token in row if token >= 0), count, groups


def _depend(lines: Tensor, sizes: Tensor) -> bool:
    """Returns whether rows of one draft in one batch have the same tokens too often to be independent.

    Args:
        lines: int64 `[rows, 2 + most]`: of each row its draft, its place and its tokens, batch by batch.
        sizes: int64 `[batches]`: numbers of rows of the batches.
    """
    batches = torch.arange(len(sizes)).repeat_interleave(sizes)
    # Batches of another size may have another law, and rows at another place too: these are no dependence.
    keys = lines[:, 0] * (int(sizes.max()) + 1) + sizes.repeat_interleave(sizes)
    _, of_draft = keys.unique(return_inverse=True)
    for tokens in lines[:, 2:].T:  # one number for each text: rows are slow to compare
        keys = keys * 1_000_003 + tokens
    texts, of_text = keys.unique(return_inverse=True)
    draft_of_text = torch.empty_like(texts).index_copy_(0, of_text, of_draft)
    rows = of_draft.bincount().double()
    shares = of_text.bincount().double() / rows[draft_of_text]
    squares = torch.zeros_like(rows).index_add_(0, draft_of_text, shares**2)
    cubes = torch.zeros_like(rows).index_add_(0, draft_of_text, shares**3)

    def counted(groups: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the groups that occur in each batch, and the number of rows of each."""
        most = int(groups.max()) + 1
        found, count = (batches * most + groups).unique(return_counts=True)
        return found % most, count.double()

    _, alike = counted(of_text)
    draft, together = counted(of_draft)
    pairs = together * (together - 1) / 2
    agreements = (alike * (alike - 1) / 2).sum() - (pairs * squares[draft]).sum()
    variance = (
        pairs * (squares - squares**2)[draft] + 2 * pairs * (together - 2) * (cubes - squares**2)[draft]
    ).sum()
    return bool(variance >= _LEAST_VARIANCE) and bool(agreements > _TOO_ALIKE * variance.sqrt())


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
