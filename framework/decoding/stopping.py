"""Stop conditions of a row, checked token by token in an accepted path."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidInput


@attrs.frozen
class Cut:
    """A row that a criterion ended after `length` new tokens, though it may have run on."""

    row: int
    length: int


@attrs.define(eq=False)
class _WatchedRow:
    """One row of a `CriteriaBatch`.

    Attributes:
        row: its number in the call.
        place: its place in the batch that the criteria see.
        length: new tokens so far.
        ended: whether no token follows.
        flagged: whether a criterion has said that it ends.
        scores: `[vocab]` of every new token, where they are kept.
    """

    row: int
    place: int
    length: int = 0
    ended: bool = False
    flagged: bool = False
    scores: list[Tensor] = attrs.field(factory=list)


@attrs.define(eq=False)
class CriteriaBatch:
    """`transformers.StoppingCriteria` that are asked about a batch of rows, once a step, as `generate` does.

    Rows run at their own pace, so a step is asked about once all rows have come to it, or have ended.

    Attributes:
        criteria: asked in order.
        rows: their numbers in the call.
        prompts: `[rows, length]` int64, as the criteria are to see them.
        pad: the token that they see after the end of a row.
        rows_end_alone: whether a row ends when a criterion says so; otherwise all go on until all are to end,
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
    _watched: dict[int, _WatchedRow] = attrs.field(init=False)
    _tokens: Tensor = attrs.field(init=False)
    _steps: list[Tensor] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._watched = {row: _WatchedRow(row, place) for place, row in enumerate(self.rows)}
        self._tokens = self.prompts

    def written(self, row: int, tokens: Sequence[int], *, ended: bool, scores: Tensor | None = None) -> None:
        """Row `row` has `tokens` more; `scores` `[tokens, vocab]` are those that chose them."""
        watched = self._watched[row]
        start = self.prompts.shape[1] + watched.length
        watched.length += len(tokens)
        watched.ended |= ended
        missing = start + len(tokens) - self._tokens.shape[1]
        if missing > 0:
            more = self._tokens.new_full((len(self.rows), missing + start), self.pad)
            self._tokens = torch.cat([self._tokens, more], 1)
        self._tokens[watched.place, start : start + len(tokens)] = torch.tensor(tokens, dtype=torch.int64)
        if self.keeps_scores and scores is not None:
            watched.scores.extend(scores)

    def ask(self) -> list[Cut]:
        """Ask about every step that all rows have come to; the rows that end by it."""
        cuts: dict[int, Cut] = {}
        while self._asked < self._frontier():
            self._asked += 1
            step = self._asked
            shown = self._tokens[:, : self.prompts.shape[1] + step]
            scores = None
            if self.keeps_scores:
                kept = [watched.scores for watched in self._watched.values()]
                self._steps.append(_at_step(kept, step - 1, pad=self.pad))
                scores = tuple(self._steps)
            for criterion in self.criteria:
                answer = torch.as_tensor(criterion(shown, scores)).cpu().reshape(-1).bool()
                flagged = answer.expand(len(self.rows)).tolist()
                for watched in self._watched.values():
                    watched.flagged |= flagged[watched.place]
            for watched in self._ending():
                if watched.length < step or (watched.ended and watched.length == step):
                    continue  # it had ended by itself
                cuts[watched.row] = Cut(watched.row, step)
                watched.length, watched.ended = step, True
                self._tokens[watched.place, shown.shape[1] :] = self.pad
                del watched.scores[step:]
        return list(cuts.values())

    def _ending(self) -> list[_WatchedRow]:
        flagged = [watched for watched in self._watched.values() if watched.flagged]
        return flagged if self.rows_end_alone or len(flagged) == len(self._watched) else []

    def _frontier(self) -> int:
        running = [watched.length for watched in self._watched.values() if not watched.ended]
        if running:
            return min(running)
        return max((watched.length for watched in self._watched.values()), default=0)


def by_step(rows: Sequence[Sequence[Tensor]], *, pad: int) -> tuple[Tensor, ...]:
    """Scores `[vocab]` of every row's tokens as one `[rows, vocab]` a step, as `generate` returns them.

    After its end a row is certain of the token `pad`.
    """
    return tuple(_at_step(rows, step, pad=pad) for step in range(max(map(len, rows), default=0)))


def _at_step(rows: Sequence[Sequence[Tensor]], step: int, *, pad: int) -> Tensor:
    certain = torch.full_like(next(row[step] for row in rows if step < len(row)), -torch.inf)
    certain[pad] = 0
    return torch.stack([row[step] if step < len(row) else certain for row in rows])


@attrs.define(eq=False)
class RowStops:
    """The conditions under which one row ends.

    Attributes:
        row: its number in the call.
        eos_token_ids: tokens that end the text; the token itself is kept.
        limit: new tokens at which it ends.
        context_limited: whether that limit is the model's context and not the caller's wish.
        criteria: the criteria for this row, or for this row and others together; None: none.
        before: tokens of the text before its new ones.
        written: new tokens so far; without the tokens of a kept row's earlier turns.
    """

    row: int
    eos_token_ids: frozenset[int]
    limit: int
    context_limited: bool = False
    criteria: CriteriaBatch | None = None
    before: int = 0
    written: int = attrs.field(default=0, init=False)

    def end(self) -> None:
        """The row ends without a further token, by an error."""
        if self.criteria is not None:
            self.criteria.written(self.row, (), ended=True)

    @property
    def length(self) -> int:
        """Returns the tokens of the text so far."""
        return self.before + self.written

    @property
    def room(self) -> int:
        """New tokens that the row may still have."""
        return self.limit - self.written

    def take(self, new: Sequence[int], scores: Tensor | None = None) -> tuple[tuple[int, ...], str | None]:
        """The part of `new` that the row keeps, criteria aside, and why it ends there.

        The reason is `"eos"`, `"length"`, `"context"`, or None while the row goes on.
        """
        room, reason = self.limit - self.written, None
        kept = tuple(new[:room])
        if len(kept) == room:
            reason = "context" if self.context_limited else "length"
        if not self.eos_token_ids.isdisjoint(kept):
            end = next(position for position, token in enumerate(kept) if token in self.eos_token_ids)
            kept, reason = kept[: end + 1], "eos"
        self.written += len(kept)
        if self.criteria is not None:
            scores = None if scores is None else scores[: len(kept)]
            self.criteria.written(self.row, kept, ended=reason is not None, scores=scores)
        return kept, reason


def stop_string_criteria(strings: str | Sequence[str], tokenizer: Any) -> Any:
    """Transformers' own criterion for `strings`.

    Raises:
        InvalidInput: there is no `tokenizer`, which makes the text.
    """
    from transformers import StopStringCriteria

    if tokenizer is None:
        raise InvalidInput(f"stop_strings={strings!r} needs the tokenizer; pass tokenizer=.")
    return StopStringCriteria(
        tokenizer=tokenizer, stop_strings=[strings] if isinstance(strings, str) else list(strings)
    )
