"""The common part of drafters that look text up: rows, and logits from counts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import torch
from torch import Tensor

from draftwood import Drafter, Outcome, Request


@attrs.frozen(eq=False)
class Followers:
    """Tokens that followed some text, and how often.

    Attributes:
        tokens: integers, each once.
        weights: of each of them, above 0: counts, or what was made of counts.
        rest: the weight of all other tokens together; 0: they are not proposed.
    """

    tokens: Any
    weights: Any
    rest: float = 0.0


class TableRow(Protocol):
    """The text of one row, and the nodes that its round has asked about."""

    def followers(self, request: Request) -> Sequence[Followers | None]:
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
            for node, known in enumerate(row.followers(request) if request is not None else ()):
                if known is None:
                    continue
                tokens = torch.as_tensor(known.tokens, dtype=torch.int64)
                others = self.vocab_size - len(tokens)
                if known.rest > 0 and others:
                    logits[index, node].fill_(known.rest / others).log_()
                logits[index, node, tokens] = torch.as_tensor(known.weights, dtype=logits.dtype).log()
        return logits

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        for row, outcome in zip(self._rows, outcomes, strict=True):
            row.commit(outcome.tokens)
