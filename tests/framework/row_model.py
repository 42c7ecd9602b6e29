"""The model of rows of a session: their texts, and each row in a session in which it is the only one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import attrs

from draftwood import RowRecord, SamplingParams, Session, SpeculativeDecoder
from tests.framework.row_options import CONSTRAINTS, RowOptions, tokenizer
from tests.framework.row_subjects import RowSubject


@attrs.frozen
class Turn:
    """A part of a row's text that somebody gives, its prompt first, and how it goes on.

    Attributes:
        tokens: of this part.
        limit: new tokens at most.
        constraint: one of `CONSTRAINTS`, or None.
    """

    tokens: tuple[int, ...]
    limit: int
    constraint: str | None = None

    @property
    def arguments(self) -> dict[str, Any]:
        """For `add` and `extend`."""
        constraint = None if self.constraint is None else CONSTRAINTS[self.constraint]()
        return {"max_new_tokens": self.limit, "constraint": constraint}


@attrs.frozen
class Written:
    """A record of a row in a round, as far as it depends on the row."""

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    finished: str | None
    logprobs: tuple[float, ...] | None
    likeliest: tuple[tuple[int, ...], ...] | None

    @classmethod
    def of(cls, record: RowRecord) -> Written:
        outcome, logprobs, likeliest = record.outcome, record.logprobs, record.likeliest
        return cls(
            tuple(record.tokens),
            outcome.drafted,
            outcome.accepted,
            record.finished,
            None if logprobs is None else tuple(round(one, 4) for one in logprobs),
            None if likeliest is None else tuple(tuple(token for token, _ in place) for place in likeliest),
        )


@attrs.frozen
class Options:
    """The arguments of a session, besides the number of its rows."""

    subject: RowSubject
    temperature: float
    ends: tuple[int, ...]

    def session(self, decoder: SpeculativeDecoder, max_rows: int | None = None) -> Session:
        ends = [end % decoder.target.vocab_size for end in self.ends]
        return decoder.session(
            sampling=SamplingParams(temperature=self.temperature),
            eos_token_id=ends,
            max_rows=max_rows,
            seed=0,
            tokenizer=tokenizer(),
        )


@lru_cache(64)
def _decoder(subject: RowSubject) -> SpeculativeDecoder:
    return subject.decoder()


@lru_cache(100_000)
def alone(options: Options, seed: int, of_row: RowOptions, turns: tuple[Turn, ...]) -> list[list[Written]]:
    """Returns the rounds of each turn of a row in a separate session."""
    written: list[list[Written]] = []
    with options.session(_decoder(options.subject)) as session:
        for number, turn in enumerate(turns):
            if number == 0:
                arguments = of_row.arguments | turn.arguments
                row = session.add(turn.tokens, seed=seed, kept=True, **arguments)
            else:
                session.extend(row, turn.tokens, **turn.arguments)
            written.append([])
            while session.unfinished:
                written[-1] += map(Written.of, session.run().rows)
    return written


@attrs.define(eq=False)
class Row:
    """The model of a row.

    Attributes:
        state: `"waiting"`, `"running"`, `"idle"`, `"returning"` (its next turn waits), `"left"` or
            `"forgotten"`.
        text: all tokens.
        written: the records of its last turn.
        held: whether the target has read of it.
        unread: tokens of the next turn, which the target has not read.
    """

    number: int
    seed: int
    kept: bool
    options: RowOptions
    turns: tuple[Turn, ...]
    text: list[int]
    state: str = "waiting"
    written: list[Written] = attrs.field(factory=list)
    held: bool = False
    unread: int = 0

    def take(self, record: RowRecord, options: Options) -> None:
        """Compare the row's result of a round with the row in a separate session."""
        assert self.state in ("waiting", "running", "returning"), f"row {self.number} is {self.state}"
        expected = alone(options, self.seed, self.options, self.turns)[-1]
        self.written.append(Written.of(record))
        self.text += record.tokens
        self.unread = 0
        stays = self.kept and record.finished != "error"
        self.state = "running" if not record.finished else "idle" if stays else "left"
        self.held = self.state != "left"
        self._compare(expected, same_rounds=not options.subject.remembers)

    def _compare(self, expected: Sequence[Written], *, same_rounds: bool) -> None:
        count, finished = len(self.written), self.written[-1].finished
        ours, wanted = _tokens(self.written), _tokens(expected)
        assert ours == wanted[: len(ours)], f"row {self.number} wrote {ours}, and alone {wanted}"
        if finished:
            assert ours == wanted, f"row {self.number} ended after {ours}, and alone wrote {wanted}"
            assert finished == expected[-1].finished, f"row {self.number} ended by {finished}"
        if same_rounds:
            assert self.written == list(expected[:count]), f"row {self.number} took other rounds than alone"


def _tokens(written: Sequence[Written]) -> list[int]:
    return [token for one in written for token in one.tokens]
