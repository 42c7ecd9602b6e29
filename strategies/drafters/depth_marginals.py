"""Drafters that say in one pass what follows at every depth, whatever the path."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import attrs
import torch
from jaxtyping import Float, Int
from torch import Tensor

from draftwood import Drafter, Outcome, Request, RequestLog


@attrs.frozen(eq=False)
class AskedNodes:
    """The nodes that a request asks for, `[rows, nodes]` int64 each.

    Attributes:
        rows: of the nodes.
        tokens: of the nodes.
        numbers: request numbers.
        parents: their parents' numbers; -1 at the root.
        depths: 0 at the root; -1 for what pads a row, and means nothing.
    """

    rows: Int[Tensor, "rows nodes"]
    tokens: Int[Tensor, "rows nodes"]
    numbers: Int[Tensor, "rows nodes"]
    parents: Int[Tensor, "rows nodes"]
    depths: Int[Tensor, "rows nodes"]


@attrs.define(eq=False)
class DepthMarginals(Drafter):
    """A node's distribution is that of its depth; below the last one nothing is proposed.

    The drafter's distribution may be any function of the text, so every law of proposals holds. A subclass
    says what it knows of a round in `_guess`, and takes over what was committed in `_read`.
    """

    _requests: list[RequestLog] = attrs.field(factory=list, init=False, repr=False)
    # This round's logits, and a last entry that proposes nothing, [rows, depths + 1, vocab].
    _logits: Tensor | None = attrs.field(default=None, init=False, repr=False)

    @abstractmethod
    def _guess(self, roots: Sequence[int | None]) -> Float[Tensor, "rows depths vocab"]:
        """Returns logits by depth after these roots (None: the row asks for nothing); -inf: no proposal."""

    @abstractmethod
    def _read(self, outcomes: Sequence[Outcome] | None) -> None:
        """Take over what the target has committed: by these outcomes, or None where rows have joined."""

    @abstractmethod
    def _forget(self, kept: Sequence[int]) -> None:
        """Keep only what is known of these rows."""

    def _at_nodes(
        self, logits: Float[Tensor, "rows nodes some"], asked: AskedNodes
    ) -> Float[Tensor, "rows nodes vocab"]:
        """Returns the logits of nodes, given the logits of their depths: the same unless overridden."""
        return logits

    def prefill(self, rows: Sequence[Tensor]) -> None:
        self._requests += [RequestLog() for _ in rows]
        self._logits = None
        self._read(None)

    def release(self, rows: Sequence[int] | None = None) -> None:
        removed = set(range(len(self._requests)) if rows is None else rows)
        kept = [row for row in range(len(self._requests)) if row not in removed]
        self._requests = [self._requests[row] for row in kept]
        if self._logits is not None:
            self._logits = self._logits[kept]
        self._forget(kept)

    @torch.no_grad()
    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        begun = [
            request is not None and not len(log)
            for request, log in zip(requests, self._requests, strict=True)
        ]
        if self._logits is None or any(begun):
            logits = self._guess([self._root(row, request) for row, request in enumerate(requests)])
            nothing = logits.new_full((len(logits), 1, logits.shape[2]), -torch.inf)
            self._logits = torch.cat([logits, nothing], 1)
        widest = max(len(request) if request is not None else 0 for request in requests)
        table = torch.zeros(6, len(requests), widest, dtype=torch.int64)
        row_of, tokens, numbers, parents, depths, lines = table
        row_of[:] = torch.arange(len(requests)).unsqueeze(1)
        depths[:] = -1
        for row, request in enumerate(requests):
            if request is None:
                continue
            log, count = self._requests[row], len(request)
            asked_now = log.take(request)
            tokens[row, :count] = request.tokens.cpu()
            for part, known in ((numbers, range(len(log))), (parents, log.parents), (depths, log.depths)):
                part[row, :count] = torch.tensor([known[node] for node in asked_now])
        # What pads a row takes the last line of the logits, as what is too deep.
        lines[:] = depths.clamp(max=self._logits.shape[1] - 1)
        *of_nodes, line = table.to(self._logits.device, non_blocking=True)
        asked = AskedNodes(*of_nodes)
        return self._at_nodes(self._logits[asked.rows, line], asked)

    def _root(self, row: int, request: Request | None) -> int | None:
        log = self._requests[row]
        if len(log):
            return log.tokens[0]
        return None if request is None else int(request.tokens[0])

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        # The target has committed these by now.
        self._requests = [RequestLog() for _ in outcomes]
        self._logits = None
        self._read(outcomes)
