"""A model that drafts, on any backend."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import Drafter, Outcome, Request, RequestLog, StateBackend, load
from draftwood.loop import pad


def _as_backend(model: Any) -> StateBackend:
    return load(model) if isinstance(model, (str, PathLike, torch.nn.Module)) else model


@attrs.define(eq=False)
class _DraftRow:
    """A row's nodes in the current round, and the accepted tokens whose state the model lacks."""

    pending: list[int]
    lead: int = 0  # pending tokens that this round's first pass took
    requested: RequestLog = attrs.field(factory=RequestLog)
    fed: int = 0  # of the nodes asked for
    exhausted: bool = False


@attrs.define(eq=False)
class ModelDrafter(Drafter):
    """Asks a smaller model for the nodes' distributions, layer by layer on its own backend.

    Nodes it was never asked about (leaves of the tree) have no state in it; when one is accepted, its
    token is fed before the next root, in the same pass. Where the text has outgrown the model's context
    it proposes nothing.
    """

    backend: StateBackend = attrs.field(converter=_as_backend)
    _rows: list[_DraftRow] = attrs.field(factory=list, init=False)
    source = "Leviathan et al. 2023"

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.backend.vocab_size

    @property
    def backends(self) -> Sequence[StateBackend]:  # type: ignore[override]
        return (self.backend,)

    @property
    def weight_bytes(self) -> int:  # type: ignore[override]
        return self.backend.weight_bytes

    @property
    def model(self) -> Any:
        return self.backend.model

    def prefill(self, rows: Sequence[Tensor]) -> None:
        room = self.backend.max_length
        # A prompt beyond the context leaves the row without proposals rather than without an answer.
        fits = [room is None or len(row) < room for row in rows]
        self.backend.prefill([row if fit else row[:0] for row, fit in zip(rows, fits, strict=True)])
        self._rows += [_DraftRow([] if fit else row.tolist()) for row, fit in zip(rows, fits, strict=True)]

    def release(self, rows: Sequence[int] | None = None) -> None:
        self.backend.release(rows)
        removed = set(range(len(self._rows)) if rows is None else rows)
        self._rows = [row for index, row in enumerate(self._rows) if index not in removed]

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        feeds, answered = [], []
        for row, request, length in zip(self._rows, requests, self.backend.lengths, strict=True):
            first = not row.fed
            feed, count = self._feed(row, request, length)
            feeds.append(feed)
            answered.append((row.lead if first and count else 0, count))
        tokens, parents, counts = pad(feeds)
        widest = max(len(request) if request is not None else 0 for request in requests)
        logits = self.backend.extend(tokens, parents, counts)
        if len(answered) == 1 and answered[0][1]:
            return logits[:, answered[0][0] :]
        out = logits.new_full((len(answered), widest, logits.shape[-1]), -torch.inf)
        for index, (lead, count) in enumerate(answered):
            out[index, :count] = logits[index, lead : lead + count]
        return out

    def _feed(
        self, row: _DraftRow, request: Request | None, length: int
    ) -> tuple[tuple[Tensor, Tensor], int]:
        """What this pass feeds for a row, and how many of the request's nodes it answers."""
        nothing = torch.zeros(0, dtype=torch.int64)
        if request is None:
            return (nothing, nothing), 0
        row.requested.take(request)
        lead = row.lead if row.fed else len(row.pending)
        room = self.backend.max_length
        row.exhausted |= room is not None and length + lead + max(row.requested.depths) >= room
        if row.exhausted:
            return (nothing, nothing), 0
        ahead = [] if row.fed else row.pending
        row.lead, row.fed = lead, len(row.requested)
        return (
            torch.cat([torch.tensor(ahead, dtype=torch.int64), request.tokens]),
            # The pending tokens are a chain from the committed state, and the root hangs below them.
            torch.cat([torch.arange(-1, len(ahead) - 1), request.parents + lead]),
        ), len(request)

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        paths = []
        for index, (row, outcome) in enumerate(zip(self._rows, outcomes, strict=True)):
            requested = zip(row.requested.parents[: row.fed], row.requested.tokens[: row.fed], strict=True)
            numbers = {key: number for number, key in enumerate(requested)}
            path, number = [], -1
            for token in outcome.tokens:
                if (number, token) not in numbers:
                    break
                number = numbers[number, token]
                path.append(row.lead + number)
            fed = [*range(row.lead), *path] if path else []
            behind = [*row.pending, *outcome.tokens]
            paths.append(fed)
            self._rows[index] = _DraftRow(behind[len(fed) :])
        self.backend.commit(paths)
