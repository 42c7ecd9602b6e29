"""`RunningRows`: the rows that take part in a round, among all rows that target and drafter hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import TypeVar

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.row_settings import Proposals, RowSettings
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.randomness import NodeStreams, Randomness
from draftwood.trees.outcome import Outcome
from draftwood.trees.request import Requests

T = TypeVar("T")

NOTHING = Outcome((), (), extra=0, bonus=False, drafted=0)
"""The outcome of a row that takes no part."""


@attrs.frozen(eq=False)
class RunningRows:
    """The rows that take part in a round, in the order of their places.

    This is the only place where an order of rows is made. All arrays and lists of a round have one entry for
    each of `rows`, in this order; arrays of target and drafter have one for each place.

    Attributes:
        rows: by ascending place.
        held: how many places target and drafter hold.
        all: whether no row that is held waits.
    """

    rows: tuple[BatchRow, ...]
    held: int
    all: bool = attrs.field(init=False)

    @classmethod
    def of(cls, rows: Iterable[BatchRow], held: int) -> RunningRows:
        """Sorts `rows`, which come in any order, by their places."""
        return cls(tuple(sorted(rows, key=_place)), held)

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "all", len(self.rows) == self.held)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def places(self) -> list[int]:
        """The place of each row, ascending."""
        return [_place(row) for row in self.rows]

    @cached_property
    def settings(self) -> list[RowSettings]:
        """The settings of each row."""
        return [row.settings for row in self.rows]

    @property
    def sampling(self) -> list[SamplingParams]:
        """The target's sampling parameters of each row."""
        return [settings.sampling for settings in self.settings]

    @cached_property
    def proposals(self) -> Proposals:
        """The draft's distributions of all rows but the `readers`, whose distributions are their own."""
        readers = self.readers
        return Proposals(
            [
                None if position in readers else settings.draft_sampling
                for position, settings in enumerate(self.settings)
            ]
        )

    @cached_property
    def draft_streams(self) -> list[Randomness]:
        """The draft stream of each row."""
        return [row.streams.draft for row in self.rows]

    @cached_property
    def verify_streams(self) -> list[Randomness]:
        """The verification stream of each row."""
        return [row.streams.verify for row in self.rows]

    @cached_property
    def node_streams(self) -> NodeStreams | None:
        """The streams of the nodes that the rows open, where the draft streams can show their numbers."""
        return NodeStreams.of(self.draft_streams)

    @property
    def draft_sampling(self) -> list[SamplingParams]:
        """The draft's sampling parameters of each row."""
        return [settings.draft_sampling for settings in self.settings]

    @cached_property
    def readers(self) -> list[int]:
        """The positions of the rows whose distributions depend on more than their logits."""
        return [position for position, row in enumerate(self.rows) if row.reads_prefix]

    def by_place(self, values: Sequence[T], *, otherwise: T) -> list[T]:
        """Returns one value for every place: that of `values`, which has one for each row, or `otherwise`."""
        if self.all:
            return list(values)
        of_rows = dict(zip(self.places, values, strict=True))
        return [of_rows.get(place, otherwise) for place in range(self.held)]

    def nodes(
        self, tokens: Tensor, parents: Tensor, counts: Sequence[int]
    ) -> tuple[Tensor, Tensor, Sequence[int]]:
        """Returns tokens and parents `[places, nodes]` and counts of every place, given these rows'."""
        if self.all:
            return tokens, parents, counts
        return self._padded(tokens, 0), self._padded(parents, -1), self.by_place(counts, otherwise=0)

    def requests(self, requests: Requests) -> Requests:
        """Returns the requests of every place, given them for these rows; other places request nothing."""
        if self.all:
            return requests
        nodes = self.nodes(requests.tokens, requests.parents, requests.counts)
        names = self.by_place(requests.drafters, otherwise=None) if requests.drafters else ()
        return Requests(*nodes, names)

    def of_rows(self, logits: Tensor) -> Tensor:
        """Logits `[rows, ...]` of these rows, from those `[places, ...]` of every place."""
        return logits if self.all else logits[self.places]

    def _padded(self, values: Tensor, filler: int) -> Tensor:
        padded = torch.full((self.held, *values.shape[1:]), filler, dtype=values.dtype, device=values.device)
        padded[self.places] = values
        return padded


def _place(row: BatchRow) -> int:
    if row.place is None:
        raise InvalidInput(f"Row {row.index} has not joined a target; let it join first.")
    return row.place
