"""Which rows of a batch take part in a round: all, or those beside rows that wait for more text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import attrs
import torch
from torch import Tensor

from draftwood.outcome import Outcome
from draftwood.request import Requests

T = TypeVar("T")

NOTHING = Outcome((), (), extra=0, bonus=False, drafted=0)
"""What came of a row that took no part."""


@attrs.frozen
class RunningRows:
    """The positions of the rows that take part, among the rows that backends and drafter hold.

    Attributes:
        positions: ascending.
        rows: that they hold.
    """

    positions: tuple[int, ...]
    rows: int

    @property
    def all(self) -> bool:
        """Whether no row waits."""
        return len(self.positions) == self.rows

    def spread(self, values: Sequence[T], filler: T) -> list[T]:
        """One value for every row that is held."""
        if self.all:
            return list(values)
        spread = [filler] * self.rows
        for position, value in zip(self.positions, values, strict=True):
            spread[position] = value
        return spread

    def nodes(
        self, tokens: Tensor, parents: Tensor, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor, Sequence[int]]:
        """Tokens and parents `[rows, nodes]` and counts of a pass over every row that is held."""
        if self.all:
            return tokens, parents, counts
        return self._padded(tokens, 0), self._padded(parents, -1), self.spread(counts, 0)

    def requests(self, requests: Requests) -> Requests:
        """The same of every row that is held; those that wait ask for nothing."""
        return (
            requests
            if self.all
            else Requests(*self.nodes(requests.tokens, requests.parents, requests.counts))
        )

    def of(self, logits: Tensor) -> Tensor:
        """Those of the rows that take part, of logits `[rows, ...]` of every row that is held."""
        return logits if self.all else logits[list(self.positions)]

    def _padded(self, values: Tensor, filler: int) -> Tensor:
        padded = torch.full((self.rows, *values.shape[1:]), filler, dtype=values.dtype, device=values.device)
        padded[list(self.positions)] = values
        return padded
