"""What `generate` returns, put together from its rounds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.round_records import Round, RowRecord, Statistics, TokenDetails
from draftwood.stopping import by_step


@attrs.frozen
class Generation:
    """What `generate` wrote.

    Attributes:
        sequences: int64 `[rows, length]`: the prompts, padding included, then the new tokens,
            right-padded.
        tokens: the new tokens of every row, unpadded.
        finish_reasons: why each row ended: `"eos"`, `"length"`, `"context"`, `"criteria"`,
            `"interrupted"`.
        statistics: the totals and every round.
        seeds: the seed of every row, by which it can be written again alone.
        policy_states: what a policy that learns knows at the end of every row; the next call goes on from
            there with `policy_state=`. None where the policy does not learn.
        logprobs: of every row's tokens under the target's own logits, before processors and temperature;
            None unless asked for.
        scores: float32 `[rows, vocab]` a step, after processors and warpers, as `generate` of
            transformers gives them; behind its end a row is certain of padding. None unless asked for.
        logits: the same before processors.
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
class PartialGeneration:
    """What rounds have written so far, row by row."""

    tokens: list[list[int]]
    reasons: list[str]
    records: list[list[RowRecord]]
    policy_states: list[Any]

    @classmethod
    def nothing(cls, policy_states: Sequence[Any]) -> PartialGeneration:
        """Before the first round of as many rows as `policy_states`, which they start from."""
        rows = len(policy_states)
        records: list[list[RowRecord]] = [[] for _ in range(rows)]
        return cls([[] for _ in range(rows)], ["interrupted"] * rows, records, list(policy_states))

    def add(self, finished_round: Round) -> None:
        for record in finished_round.rows:
            self.tokens[record.row].extend(record.tokens)
            self.records[record.row].append(record)
            self.policy_states[record.row] = record.policy_state
            self.reasons[record.row] = record.finished or self.reasons[record.row]
        for row, length in finished_round.cut.items():
            del self.tokens[row][length:]
            self.reasons[row] = "criteria"

    def generation(
        self, prompts: Tensor, statistics: Statistics, seeds: Sequence[int], *, pad: int, keep: TokenDetails
    ) -> Generation:
        """What `generate` returns for `prompts` int64 `[rows, length]`."""
        longest = max(map(len, self.tokens))
        new = torch.tensor([row + [pad] * (longest - len(row)) for row in self.tokens], dtype=torch.int64)
        return Generation(
            sequences=torch.cat([prompts.to(torch.int64), new.to(prompts.device)], 1),
            tokens=self.tokens,
            finish_reasons=self.reasons,
            statistics=statistics,
            seeds=list(seeds),
            policy_states=None if None in self.policy_states else self.policy_states,
            logprobs=[
                [value for record in row for value in record.logprobs or ()][: len(tokens)]
                for row, tokens in zip(self.records, self.tokens, strict=True)
            ]
            if keep.logprobs
            else None,
            scores=by_step(self._per_token("scores"), pad=pad) if keep.scores else None,
            logits=by_step(self._per_token("logits"), pad=pad) if keep.logits else None,
        )

    def _per_token(self, name: str) -> list[list[Tensor]]:
        return [
            [value for record in row for value in getattr(record, name)][: len(tokens)]
            for row, tokens in zip(self.records, self.tokens, strict=True)
        ]
