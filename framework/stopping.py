"""When a row is finished: token by token, wherever in an accepted path it happens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor


@attrs.frozen
class Cut:
    """A row that a criterion ended after `length` new tokens, though it may have run on."""

    row: int
    length: int


@attrs.define(eq=False)
class CriteriaBatch:
    """`transformers.StoppingCriteria` that are asked about a batch of rows, once a step, as `generate` does.

    Rows run at their own pace, so a step is asked about once all rows have come to it, or have ended.

    Attributes:
        criteria: asked in order.
        rows: their numbers in the call.
        prompts: `[rows, length]` int64, as the criteria are to see them.
        pad: what they see behind the end of a row.
        rows_end_alone: whether a row ends when a criterion says so; else all go on until all are to end,
            as in `generate` without an end-of-text token.
        keeps_scores: whether the criteria are shown the scores of every step.
    """

    criteria: Sequence[Any]
    rows: Sequence[int]
    prompts: Tensor
    pad: int
    rows_end_alone: bool = True
    keeps_scores: bool = False
    _asked: int = attrs.field(default=0, init=False)
    _lengths: list[int] = attrs.field(init=False)
    _ended: list[bool] = attrs.field(init=False)
    _flagged: Tensor = attrs.field(init=False)
    _tokens: Tensor = attrs.field(init=False)
    _scores: list[list[Tensor]] = attrs.field(init=False)
    _steps: list[Tensor] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        rows = len(self.rows)
        self._lengths, self._ended = [0] * rows, [False] * rows
        self._flagged = torch.zeros(rows, dtype=torch.bool)
        self._tokens = self.prompts
        self._scores = [[] for _ in range(rows)]

    def written(self, row: int, tokens: Sequence[int], *, ended: bool, scores: Tensor | None = None) -> None:
        """Row `row` has `tokens` more; `scores` `[tokens, vocab]` are those that chose them."""
        position = self.rows.index(row)
        start = self.prompts.shape[1] + self._lengths[position]
        self._lengths[position] += len(tokens)
        self._ended[position] |= ended
        missing = start + len(tokens) - self._tokens.shape[1]
        if missing > 0:
            more = self._tokens.new_full((len(self.rows), missing + start), self.pad)
            self._tokens = torch.cat([self._tokens, more], 1)
        self._tokens[position, start : start + len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        if self.keeps_scores and scores is not None:
            self._scores[position].extend(scores)

    def ask(self) -> list[Cut]:
        """Ask about every step that all rows have come to; the rows that end by it."""
        cuts: dict[int, Cut] = {}
        while self._asked < self._frontier():
            self._asked += 1
            step = self._asked
            shown = self._tokens[:, : self.prompts.shape[1] + step]
            scores = None
            if self.keeps_scores:
                self._steps.append(_at_step(self._scores, step - 1, pad=self.pad))
                scores = tuple(self._steps)
            for criterion in self.criteria:
                answer = torch.as_tensor(criterion(shown, scores)).cpu().reshape(-1)
                self._flagged |= answer.bool()
            if self.rows_end_alone:
                ending = [position for position, flagged in enumerate(self._flagged.tolist()) if flagged]
            else:
                ending = list(range(len(self.rows))) if bool(self._flagged.all()) else []
            for position in ending:
                if self._lengths[position] < step or self._closed(position, step):
                    continue
                cuts[position] = Cut(self.rows[position], step)
                self._lengths[position], self._ended[position] = step, True
                self._tokens[position, shown.shape[1] :] = self.pad
                del self._scores[position][step:]
        return list(cuts.values())

    def _closed(self, position: int, step: int) -> bool:
        """Whether the row had ended at this step by itself."""
        return self._ended[position] and self._lengths[position] == step

    def _frontier(self) -> int:
        running = [n for n, ended in zip(self._lengths, self._ended, strict=True) if not ended]
        return min(running) if running else max(self._lengths, default=0)


def by_step(rows: Sequence[Sequence[Tensor]], *, pad: int) -> tuple[Tensor, ...]:
    """Scores `[vocab]` of every row's tokens as one `[rows, vocab]` a step, as `generate` returns them.

    Behind its end a row is certain of the token `pad`.
    """
    return tuple(_at_step(rows, step, pad=pad) for step in range(max(map(len, rows), default=0)))


def _at_step(rows: Sequence[Sequence[Tensor]], step: int, *, pad: int) -> Tensor:
    certain = torch.full_like(next(row[step] for row in rows if step < len(row)), -torch.inf)
    certain[pad] = 0
    return torch.stack([row[step] if step < len(row) else certain for row in rows])


@attrs.define(eq=False)
class StopConditions:
    """The conditions of one `generate` call.

    Attributes:
        eos_token_ids: tokens that end the text; the token itself is kept.
        limit: for every row, the new tokens at which it ends.
        context_limited: whether the row's limit is the model's context and not the caller's wish.
        batches: criteria, and the rows that they are asked about together.
    """

    eos_token_ids: frozenset[int]
    limit: list[int] = attrs.field(factory=list)
    context_limited: list[bool] = attrs.field(factory=list)
    batches: list[CriteriaBatch] = attrs.field(factory=list)
    written: list[int] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.written = [0] * len(self.limit)

    def join(self, limit: int, context_limited: bool) -> None:
        """One more row."""
        self.limit.append(limit)
        self.context_limited.append(context_limited)
        self.written.append(0)

    def extend(self, row: int, limit: int, context_limited: bool) -> None:
        """Let `row` have up to `limit` new tokens more, and be asked about anew."""
        self.limit[row], self.context_limited[row] = self.written[row] + limit, context_limited
        self.forget(row)

    def forget(self, row: int) -> None:
        """Ask no more about `row` alone."""
        self.batches = [batch for batch in self.batches if list(batch.rows) != [row]]

    def room(self, row: int) -> int:
        """New tokens that the row may still have."""
        return self.limit[row] - self.written[row]

    def take(
        self, row: int, new: Sequence[int], scores: Tensor | None = None
    ) -> tuple[tuple[int, ...], str | None]:
        """The part of `new` that row `row` keeps by itself, and why it ends there.

        The reason is `"eos"`, `"length"`, `"context"`, or None while the row goes on.
        """
        kept = tuple(new[: self.room(row)])
        reason = None
        if len(kept) == self.room(row):
            reason = "context" if self.context_limited[row] else "length"
        end = next((position for position, token in enumerate(kept) if token in self.eos_token_ids), None)
        if end is not None:
            kept, reason = kept[: end + 1], "eos"
        self.written[row] += len(kept)
        for batch in self.batches:
            if row in batch.rows:
                batch.written(
                    row,
                    kept,
                    ended=reason is not None,
                    scores=None if scores is None else scores[: len(kept)],
                )
        return kept, reason

    def ask(self) -> dict[int, int]:
        """What the criteria say of what was taken: new tokens that rows keep which end by it."""
        return {cut.row: cut.length for batch in self.batches for cut in batch.ask()}


def stop_string_criteria(strings: str | Sequence[str], tokenizer: Any) -> Any:
    """Transformers' own criterion for `strings`, which needs the tokenizer that makes the text."""
    from transformers import StopStringCriteria

    return StopStringCriteria(
        tokenizer=tokenizer, stop_strings=[strings] if isinstance(strings, str) else list(strings)
    )
