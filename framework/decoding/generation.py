"""The result of `generate`, assembled from its rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.decoding.round_records import Round, RowRecord, Statistics, TokenDetails
from draftwood.decoding.stopping import by_step


@attrs.frozen
class Generation:
    """The result of `generate`.

    Attributes:
        sequences: int64 `[rows, length]`: the prompts, padding included, then the new tokens,
            right-padded.
        tokens: the new tokens of every row, unpadded.
        finish_reasons: why each row ended: `"eos"`, `"length"`, `"context"`, `"criteria"`,
            `"interrupted"`.
        statistics: the totals and every round.
        seeds: the seed of every row, with which the row can be written again by itself.
        policy_states: the state of a learning policy at the end of every row; give it to the next call as
            `policy_state=`. None where the policy does not learn.
        logprobs: log-probabilities of every row's tokens under the target's logits, before processors and
            temperature; None unless requested.
        scores: float32 `[rows, vocab]` per step, after processors and warpers, as `generate` of transformers
            returns them; after its end a row gives padding probability 1. None unless requested.
        logits: the scores before processors.
    """

    sequences: Tensor
    tokens: list[list[int]]
    finish_reasons: list[str]
    statistics: Statistics
    seeds: list[int]
    policy_states: list[Any] | None = None
    logprobs: list[list[float]] | None = None
    scores: tuple[Tensor, ...] | None = attrs.field(default=None, repr=False)
    logits: tuple[Tensor, ...] | None = attrs.field(default=None, repr=False)


@attrs.define(eq=False)
class WrittenRow:
    """The text that rounds have written so far after one prompt.

    Attributes:
        policy_state: the state of a policy that learns.
        tokens: new tokens.
        finish_reason: as in `Generation`.
        records: one for each round.
    """

    policy_state: Any
    tokens: list[int] = attrs.field(factory=list)
    finish_reason: str = "interrupted"
    records: list[RowRecord] = attrs.field(factory=list)

    def add(self, record: RowRecord) -> None:
        self.tokens.extend(record.tokens)
        self.records.append(record)
        self.policy_state = record.policy_state
        self.finish_reason = record.finished or self.finish_reason

    def cut(self, length: int) -> None:
        del self.tokens[length:]
        self.finish_reason = "criteria"

    def details(self, name: str) -> list[Any]:
        """Values of `RowRecord` that belong to the tokens, such as `scores`."""
        return [value for record in self.records for value in getattr(record, name)][: len(self.tokens)]


@attrs.define(eq=False)
class PartialGeneration:
    """The text that rounds have written so far, row by row."""

    rows: list[WrittenRow]

    @classmethod
    def nothing(cls, policy_states: Sequence[Any]) -> PartialGeneration:
        """Before the first round of as many rows as `policy_states`, which they start from."""
        return cls([WrittenRow(state) for state in policy_states])

    def add(self, finished_round: Round) -> None:
        for record in finished_round.rows:
            self.rows[record.row].add(record)
        for row, length in finished_round.cut.items():
            self.rows[row].cut(length)

    def generation(
        self, prompts: Tensor, statistics: Statistics, seeds: Sequence[int], *, pad: int, keep: TokenDetails
    ) -> Generation:
        """Returns the result of `generate` for `prompts` int64 `[rows, length]`."""
        longest = max(len(row.tokens) for row in self.rows)
        padded = [row.tokens + [pad] * (longest - len(row.tokens)) for row in self.rows]
        new = torch.tensor(padded, dtype=torch.int64)
        states = [row.policy_state for row in self.rows]
        return Generation(
            sequences=torch.cat([prompts.to(torch.int64), new.to(prompts.device)], 1),
            tokens=[row.tokens for row in self.rows],
            finish_reasons=[row.finish_reason for row in self.rows],
            statistics=statistics,
            seeds=list(seeds),
            policy_states=None if None in states else states,
            logprobs=self._details("logprobs") if keep.logprobs else None,
            scores=by_step(self._details("scores"), pad=pad) if keep.scores else None,
            logits=by_step(self._details("logits"), pad=pad) if keep.logits else None,
        )

    def _details(self, name: str) -> list[list[Any]]:
        return [row.details(name) for row in self.rows]
