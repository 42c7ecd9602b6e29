"""Requests of policies to the draft, of one row and of all rows, and the request numbers of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import attrs
import torch
from jaxtyping import Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from draftwood.trees.prefixes import Path


@attrs.frozen(eq=False)
class Request:
    """Nodes of one row whose draft distributions a policy needs.

    The *request number* of a node counts the nodes that were asked for before it in the round, over all
    requests: the root comes first, as number 0 with parent -1. It is the node's index in the tree only where
    a policy asks for all nodes in the order of the tree.

    Attributes:
        tokens: int64.
        parents: int64, the request numbers of the nodes' parents.
        drafter: the name of the drafter that is asked, of several; None: there is one.
    """

    tokens: Int[Tensor, " k"]
    parents: Int[Tensor, " k"]
    drafter: str | None = None

    def __len__(self) -> int:
        return len(self.tokens)


@attrs.frozen(eq=False)
class Requests(Sequence[Request | None]):
    """One request a row, as one batch; item i is that of row i, None where it asks for nothing.

    Attributes:
        tokens: `[rows, nodes]` int64; of a row with fewer nodes the last ones are padding.
        parents: `[rows, nodes]` int64 on the CPU, request numbers as in `Request`.
        counts: nodes of every row.
        drafters: the drafter that every row asks, as in `Request`; empty: none asks one by its name.
    """

    tokens: Int[Tensor, "rows nodes"]
    parents: Int[Tensor, "rows nodes"]
    counts: Sequence[int]
    drafters: Sequence[str | None] = ()

    @classmethod
    def of(cls, requests: Sequence[Request | None]) -> Requests:
        """The batch of these requests, or they themselves."""
        if isinstance(requests, Requests):
            return requests
        nothing = torch.zeros(0, dtype=torch.int64)
        asked = [request or Request(nothing, nothing) for request in requests]
        return cls(
            pad_sequence([request.tokens for request in asked], batch_first=True),
            pad_sequence([request.parents for request in asked], batch_first=True, padding_value=-1),
            [len(request) for request in asked],
            [request.drafter for request in asked] if any(request.drafter for request in asked) else (),
        )

    def __len__(self) -> int:
        return len(self.counts)

    @overload
    def __getitem__(self, row: int) -> Request | None: ...
    @overload
    def __getitem__(self, row: slice) -> list[Request | None]: ...
    def __getitem__(self, row: int | slice) -> Request | list[Request | None] | None:
        if isinstance(row, slice):
            return [self[index] for index in range(len(self))[row]]
        count = self.counts[row]
        drafter = self.drafters[row] if self.drafters else None
        return Request(self.tokens[row, :count], self.parents[row, :count], drafter) if count else None


@attrs.define(eq=False)
class RequestLog:
    """The nodes that were asked for so far in a round of one row, by request number.

    Attributes:
        tokens: of every node.
        parents: request numbers of their parents; -1 at the root.
        depths: 0 at the root.
    """

    tokens: list[int] = attrs.field(factory=list)
    parents: list[int] = attrs.field(factory=list)
    depths: list[int] = attrs.field(factory=list)
    _paths: list[Path] = attrs.field(factory=list, init=False)

    def __len__(self) -> int:
        return len(self.tokens)

    def take(self, request: Request) -> range:
        """Add the nodes of `request`, whose parents were requested before, and return the nodes' numbers."""
        first = len(self)
        self.tokens += request.tokens.tolist()
        self.parents += request.parents.tolist()
        for parent in self.parents[first:]:
            self.depths.append(self.depths[parent] + 1 if parent >= 0 else 0)
        return range(first, len(self))

    def path(self, number: int) -> Path:
        """The tokens of a node's path, without the root's."""
        for node in range(len(self._paths), number + 1):
            parent = self.parents[node]
            self._paths.append((*self._paths[parent], self.tokens[node]) if parent >= 0 else ())
        return self._paths[number]
