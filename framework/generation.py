"""What `generate` returns, put together from its rounds."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from draftwood.records import Keep, Round, RowRecord, Statistics
from draftwood.stopping import by_step


@attrs.frozen
class Generation:
    """What `generate` wrote.

    Attributes:
        sequences: int64 `[rows, length]`: the prompts as given, padding included, then the new tokens,
            right-padded.
        tokens: the new tokens of every row, unpadded.
        finish_reasons: why each row ended: `"eos"`, `"length"`, `"context"`, `"criteria"`,
            `"interrupted"`.
        statistics: the totals and every round.
        seeds: the seed of every row, by which it can be written again alone.
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
    logprobs: list[list[float]] | None = None
    scores: tuple[Tensor, ...] | None = attrs.field(default=None, repr=False)
    logits: tuple[Tensor, ...] | None = attrs.field(default=None, repr=False)


@attrs.define(eq=False)
class Written:
    """What rounds have written so far, row by row."""

    tokens: list[list[int]]
    reasons: list[str]
    records: list[list[RowRecord]]

    @classmethod
    def nothing(cls, rows: int) -> Written:
        return cls([[] for _ in range(rows)], ["interrupted"] * rows, [[] for _ in range(rows)])

    def add(self, finished_round: Round) -> None:
        for record in finished_round.rows:
            self.tokens[record.row].extend(record.tokens)
            self.records[record.row].append(record)
            self.reasons[record.row] = record.finished or self.reasons[record.row]
        for row, length in finished_round.cut.items():
            del self.tokens[row][length:]
            self.reasons[row] = "criteria"

    def generation(
        self, prompts: Tensor, statistics: Statistics, seeds: Sequence[int], *, pad: int, keep: Keep
    ) -> Generation:
        """The whole, behind `prompts` int64 `[rows, length]`."""
        longest = max(map(len, self.tokens))
        new = torch.tensor([row + [pad] * (longest - len(row)) for row in self.tokens], dtype=torch.int64)
        return Generation(
            sequences=torch.cat([prompts.to(torch.int64), new.to(prompts.device)], 1),
            tokens=self.tokens,
            finish_reasons=self.reasons,
            statistics=statistics,
            seeds=list(seeds),
            logprobs=[
                [value for record in row for value in record.logprobs or ()][: len(tokens)]
                for row, tokens in zip(self.records, self.tokens, strict=True)
            ]
            if keep.logprobs
            else None,
            scores=by_step(self._kept("scores"), pad=pad) if keep.scores else None,
            logits=by_step(self._kept("logits"), pad=pad) if keep.logits else None,
        )

    def _kept(self, name: str) -> list[list[Tensor]]:
        return [
            [value for record in row for value in getattr(record, name)][: len(tokens)]
            for row, tokens in zip(self.records, self.tokens, strict=True)
        ]
