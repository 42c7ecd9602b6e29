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
class _Row:
    """A row's nodes in the current round, and the accepted tokens whose state the model lacks."""

    pending: list[int]
    lead: int = 0  # pending tokens that this round's first pass fed
    asked: RequestLog = attrs.field(factory=RequestLog)
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
    _rows: list[_Row] = attrs.field(factory=list, init=False)
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
        self._rows += [_Row([] if fit else row.tolist()) for row, fit in zip(rows, fits, strict=True)]

    def release(self, rows: Sequence[int] | None = None) -> None:
        self.backend.release(rows)
        gone = set(range(len(self._rows)) if rows is None else rows)
        self._rows = [row for place, row in enumerate(self._rows) if place not in gone]

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        feeds, asked = [], []
        for row, request, length in zip(self._rows, requests, self.backend.lengths, strict=True):
            first = not row.fed
            feed, kept = self._feed(row, request, length)
            feeds.append(feed)
            asked.append((row.lead if first and kept else 0, kept))
        tokens, parents, counts = pad(feeds)
        widest = max(len(request) if request is not None else 0 for request in requests)
        logits = self.backend.extend(tokens, parents, counts)
        if len(asked) == 1 and asked[0][1]:
            return logits[:, asked[0][0] :]
        out = logits.new_full((len(asked), widest, logits.shape[-1]), -torch.inf)
        for place, (lead, kept) in enumerate(asked):
            out[place, :kept] = logits[place, lead : lead + kept]
        return out

    def _feed(self, row: _Row, request: Request | None, length: int) -> tuple[tuple[Tensor, Tensor], int]:
        """What this pass feeds for a row, and how many of the request's nodes it answers."""
        nothing = torch.zeros(0, dtype=torch.int64)
        if request is None:
            return (nothing, nothing), 0
        row.asked.take(request)
        lead = row.lead if row.fed else len(row.pending)
        room = self.backend.max_length
        row.exhausted |= room is not None and length + lead + max(row.asked.depths) >= room
        if row.exhausted:
            return (nothing, nothing), 0
        ahead = [] if row.fed else row.pending
        row.lead, row.fed = lead, len(row.asked)
        return (
            torch.cat([torch.tensor(ahead, dtype=torch.int64), request.tokens]),
            # The pending tokens are a chain from the committed state, and the root hangs below them.
            torch.cat([torch.arange(-1, len(ahead) - 1), request.parents + lead]),
        ), len(request)

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        paths = []
        for place, (row, outcome) in enumerate(zip(self._rows, outcomes, strict=True)):
            asked = zip(row.asked.parents[: row.fed], row.asked.tokens[: row.fed], strict=True)
            known = {key: number for number, key in enumerate(asked)}
            path, number = [], -1
            for token in outcome.tokens:
                if (number, token) not in known:
                    break
                number = known[number, token]
                path.append(row.lead + number)
            fed = [*range(row.lead), *path] if path else []
            behind = [*row.pending, *outcome.tokens]
            paths.append(fed)
            self._rows[place] = _Row(behind[len(fed) :])
        self.backend.commit(paths)
