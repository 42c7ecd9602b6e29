"""What drafters that look text up have in common: rows, and logits from counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Protocol

import attrs
import torch
from torch import Tensor

from draftwood import Drafter, Outcome, Request

Counts = tuple[Collection[int], Collection[int]]
"""Tokens and how often each of them followed."""


class TableRow(Protocol):
    """The text of one row, and the nodes that its round has asked about."""

    def followers(self, request: Request) -> Sequence[Counts | None]:
        """For every node of `request` what followed its text, or None; the round keeps the nodes."""
        ...

    def commit(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the text and forget the round's nodes."""
        ...


@attrs.define(eq=False)
class TableDrafter(Drafter):
    """Proposes what followed a node's text elsewhere, as often as it did. It needs no weights and no pass."""

    _rows: list[TableRow] = attrs.field(factory=list, init=False)

    @abstractmethod
    def _row(self) -> TableRow:
        """A row without text."""

    def prefill(self, rows: Sequence[Tensor]) -> None:
        for tokens in rows:
            row = self._row()
            row.commit(tokens.tolist())
            self._rows.append(row)

    def release(self, rows: Sequence[int] | None = None) -> None:
        removed = set(range(len(self._rows)) if rows is None else rows)
        self._rows = [row for index, row in enumerate(self._rows) if index not in removed]

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        widest = max(len(request) if request is not None else 0 for request in requests)
        logits = torch.full((len(requests), widest, self.vocab_size), -torch.inf)
        for index, (row, request) in enumerate(zip(self._rows, requests, strict=True)):
            for node, follower_counts in enumerate(row.followers(request) if request is not None else ()):
                if follower_counts:
                    tokens, counts = (
                        torch.as_tensor(values, dtype=torch.int64) for values in follower_counts
                    )
                    logits[index, node, tokens] = counts.to(logits.dtype).log()
        return logits

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        for row, outcome in zip(self._rows, outcomes, strict=True):
            row.commit(outcome.tokens)
