"""A target and a draft that cost nothing, for the time of a round without its passes."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from draftwood import Drafter, Outcome, Request, Requests, StateBackend

CONTEXTS = 512


@attrs.define(eq=False)
class LogitsTable:
    """Logits after every token, `[CONTEXTS, vocab]` of which a token has the row `token % CONTEXTS`."""

    logits: Tensor

    def after(self, tokens: Tensor) -> Tensor:
        """Logits `[rows, nodes, vocab]`, in fresh memory, as a model gives them."""
        rows, nodes = tokens.shape
        device = self.logits.device
        out = torch.empty(rows * nodes, self.logits.shape[1], device=device)
        rows_of = tokens.flatten().to(device, non_blocking=True) % CONTEXTS
        return torch.index_select(self.logits, 0, rows_of, out=out).view(rows, nodes, -1)


def tables(
    vocab: int, *, spread: float, correlation: float, seed: int, device: str = "cpu"
) -> tuple[LogitsTable, LogitsTable]:
    """Gaussian logits of a target and a draft, float32, correlated as said."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(CONTEXTS, vocab, generator=generator).mul_(spread)
    noise = torch.randn(CONTEXTS, vocab, generator=generator).mul_(spread * (1 - correlation**2) ** 0.5)
    draft = noise.add_(target, alpha=correlation)
    return LogitsTable(target.to(device)), LogitsTable(draft.to(device))


@attrs.define(eq=False)
class TableBackend(StateBackend):
    """A target whose logits depend only on the last token."""

    table: LogitsTable
    max_length = None
    weight_bytes = 0
    _lengths: list[int] = attrs.field(factory=list, init=False)

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.table.logits.shape[1]

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return self.table.logits.device

    @property
    def lengths(self) -> list[int]:
        return list(self._lengths)

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self._lengths += [len(row) for row in rows]

    def release(self, rows: Sequence[int] | None = None) -> None:
        removed = set(range(len(self._lengths)) if rows is None else rows)
        self._lengths = [length for row, length in enumerate(self._lengths) if row not in removed]

    def extend(self, tokens: Tensor, parents: Tensor, counts: Sequence[int] | None = None) -> Tensor:
        return self.table.after(tokens)

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        self._lengths = [have + len(path) for have, path in zip(self._lengths, paths, strict=True)]


@attrs.define(eq=False)
class TableDraft(Drafter):
    """A draft whose logits depend only on the node's token."""

    table: LogitsTable

    @property
    def vocab_size(self) -> int:  # type: ignore[override]
        return self.table.logits.shape[1]

    def prefill(self, rows: Sequence[Tensor]) -> None: ...

    def release(self, rows: Sequence[int] | None = None) -> None: ...

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        return self.table.after(Requests.of(requests).tokens)

    def commit(self, outcomes: Sequence[Outcome]) -> None: ...
