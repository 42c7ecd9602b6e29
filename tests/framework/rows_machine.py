"""A state machine over the rows of a `Session`: each is at any time what the same row is without the others.

Rows join, are written, stay, go on with another turn, are dropped, cancelled and forgotten, in any order, and the
session is closed and another one opened. Every row is compared round by round with a session in which it is the
only one: the tokens, and how many of how many drafts were accepted, so that a draft that read another row's text
is seen too. What the target holds is compared with the texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache, wraps
from typing import Any

import attrs
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from draftwood import InvalidInput, RowRecord, SamplingParams, Session, SpeculativeDecoder
from draftwood.testing import ToyBackend
from tests.framework.row_subjects import RowSubject, doubled_states, subjects

MOST_ROWS = 8
LONG = 70
"""Tokens of a turn that takes two passes of the target."""

Turn = tuple[tuple[int, ...], int]
"""Tokens that a row goes on from, its prompt first, and how many new ones at most."""


@attrs.frozen
class Written:
    """A record of a row in a round, as far as it depends on the row."""

    tokens: tuple[int, ...]
    drafted: int
    accepted: int
    finished: str | None

    @classmethod
    def of(cls, record: RowRecord) -> Written:
        outcome = record.outcome
        return cls(tuple(record.tokens), outcome.drafted, outcome.accepted, record.finished)


@attrs.frozen
class Options:
    """What a session is opened with."""

    subject: RowSubject
    temperature: float
    ends: tuple[int, ...]

    def session(self, decoder: SpeculativeDecoder, max_rows: int | None = None) -> Session:
        sampling = SamplingParams(temperature=self.temperature)
        ends = [end % decoder.target.vocab_size for end in self.ends]
        return decoder.session(sampling=sampling, eos_token_id=ends, max_rows=max_rows, seed=0)


@lru_cache(64)
def _decoder(subject: RowSubject) -> SpeculativeDecoder:
    return subject.decoder()


@lru_cache(100_000)
def alone(options: Options, seed: int, turns: tuple[Turn, ...]) -> list[list[Written]]:
    """The rounds of each turn of a row in a session of its own."""
    written: list[list[Written]] = []
    with options.session(_decoder(options.subject)) as session:
        for turn, (tokens, limit) in enumerate(turns):
            if turn == 0:
                row = session.add(tokens, max_new_tokens=limit, seed=seed, kept=True)
            else:
                session.extend(row, tokens, max_new_tokens=limit)
            written.append([])
            while session.unfinished:
                written[-1] += map(Written.of, session.run().rows)
    return written


@attrs.define(eq=False)
class Row:
    """The model of a row.

    Attributes:
        state: `"waiting"`, `"running"`, `"idle"`, `"returning"` (its next turn waits) or `"left"`.
        text: all tokens.
        written: the records of its last turn.
        held: whether the target has read of it.
        unread: tokens of the next turn, which the target has not read.
    """

    number: int
    seed: int
    kept: bool
    turns: tuple[Turn, ...]
    text: list[int]
    state: str = "waiting"
    written: list[Written] = attrs.field(factory=list)
    held: bool = False
    unread: int = 0

    def take(self, record: RowRecord, options: Options) -> None:
        """Compare what a round made of it with the same row alone."""
        assert self.state in ("waiting", "running", "returning"), f"row {self.number} is {self.state}"
        expected = alone(options, self.seed, self.turns)[-1]
        self.written.append(Written.of(record))
        self.text += record.tokens
        self.held, self.unread = True, 0
        self.state = "running"
        if record.finished:
            self.state = "idle" if self.kept else "left"
            self.held = self.kept
        self._compare(expected)

    def _compare(self, expected: Sequence[Written]) -> None:
        count, finished = len(self.written), self.written[-1].finished
        ours, wanted = _tokens(self.written), _tokens(expected)
        assert ours == wanted[: len(ours)], f"row {self.number} wrote {ours}, and alone {wanted}"
        if finished:
            assert ours == wanted, f"row {self.number} ended after {ours}, and alone wrote {wanted}"
            assert finished == expected[-1].finished
        if not self.remembers:
            assert self.written == list(expected[:count]), f"row {self.number} took other rounds than alone"

    remembers: bool = False


def _tokens(written: Sequence[Written]) -> list[int]:
    return [token for one in written for token in one.tokens]


def _noted(method: Callable[..., None]) -> Callable[..., None]:
    """Note the first step after which something was found."""

    @wraps(method)
    def call(self: RowsMachine, **arguments: Any) -> None:
        try:
            method(self, **arguments)
        except Exception:
            self.broken = True
            self.counts.setdefault("failed at", self.counts["steps"])
            raise

    return call


def _step(method: Callable[..., None]) -> Callable[..., None]:
    """Count the calls of a rule."""

    @wraps(method)
    def call(self: RowsMachine, **arguments: Any) -> None:
        self.counts["steps"] += 1
        self.counts[method.__name__] += 1
        method(self, **arguments)

    return _noted(call)


_numbers = st.integers(0, 10**6)
_limits = st.integers(1, 6) | st.integers(7, 14)
_rooms = st.none() | st.integers(1, MOST_ROWS)
_tokens_given = st.lists(_numbers, min_size=1, max_size=6)


class RowsMachine(RuleBasedStateMachine):
    """Random calls on sessions of one kind of backend.

    Attributes:
        kind: one of `row_subjects.KINDS`.
        counts: steps so far, by rule.
    """

    kind = "toy"
    counts: Counter[str] = Counter()

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[Row] = []
        self.broken = False
        self._stack = ExitStack()
        self._stack.enter_context(doubled_states())

    @initialize(
        subject=_numbers,
        temperature=st.sampled_from([0.0, 0.7, 1.0]),
        ends=st.sampled_from([(), (), (3,), (2, 5)]),
        max_rows=_rooms,
        prompts=st.lists(_tokens_given, min_size=2, max_size=4),
    )
    def open(
        self,
        subject: int,
        temperature: float,
        ends: tuple[int, ...],
        max_rows: int | None,
        prompts: list[list[int]],
    ) -> None:
        known = subjects(self.kind)
        chosen = known[subject % len(known)]
        self.options = Options(chosen, 0.0 if chosen.remembers else temperature, ends)
        self.decoder = chosen.decoder()
        self._begin(max_rows)
        for seed, prompt in enumerate(prompts):
            self._add(prompt, 2 + seed, seed, kept=True)

    def _begin(self, max_rows: int | None) -> None:
        self.max_rows = max_rows
        self.rows = []
        self.rounds = self.refusals = 0
        self.session = self.options.session(self.decoder, max_rows)
        self.session.__enter__()

    def _in(self, *states: str) -> list[Row]:
        return [row for row in self.rows if row.state in states]

    @property
    def present(self) -> list[Row]:
        return self._in("waiting", "running", "idle", "returning")

    @property
    def _can_run(self) -> bool:
        """Whether a round can be made: someone is being written, or waits for room that there is."""
        held = sum(row.held for row in self.rows)
        room = self.max_rows is None or held < self.max_rows
        return bool(self._in("running", "returning")) or (room and bool(self._in("waiting")))

    def _given(self, row: int, tokens: Sequence[int]) -> tuple[int, ...]:
        """Tokens for a row; the simplest ones of two rows differ too."""
        vocab_size = self.decoder.target.vocab_size
        return tuple((token + 5 * row + 2 * place) % vocab_size for place, token in enumerate(tokens))

    def _add(self, prompt: Sequence[int], limit: int, seed: int, kept: bool) -> None:
        tokens = self._given(len(self.rows), prompt)
        number = self.session.add(tokens, max_new_tokens=limit, seed=seed, kept=kept)
        assert number == len(self.rows)
        turns = ((tokens, limit),)
        remembers = self.options.subject.remembers
        self.rows.append(Row(number, seed, kept, turns, list(tokens), remembers=remembers))

    @precondition(lambda self: len(self.present) < MOST_ROWS)
    @rule(prompt=_tokens_given, limit=_limits, seed=_numbers, kept=st.integers(0, 3))
    @_step
    def add(self, prompt: list[int], limit: int, seed: int, kept: int) -> None:
        self._add(prompt, limit, seed, kept > 0)

    @precondition(lambda self: len(self.present) < MOST_ROWS - 1)
    @rule(prompts=st.lists(_tokens_given, min_size=2, max_size=3), limit=_limits, seed=_numbers)
    @_step
    def add_several(self, prompts: list[list[int]], limit: int, seed: int) -> None:
        for prompt in prompts[: MOST_ROWS - len(self.present)]:
            self._add(prompt, limit, seed, kept=True)

    def _extend(self, row: Row, tokens: Sequence[int], limit: int) -> None:
        more = self._given(row.number, tokens)
        self.session.extend(row.number, more, max_new_tokens=limit)
        row.turns = (*row.turns, (more, limit))
        row.text += more
        row.unread = len(more)
        row.written = []
        row.state = "returning"

    @precondition(lambda self: self._in("idle"))
    @rule(which=_numbers, tokens=_tokens_given, limit=_limits, long=st.integers(0, 9))
    @_step
    def extend(self, which: int, tokens: list[int], limit: int, long: int) -> None:
        idle = self._in("idle")
        self._extend(idle[which % len(idle)], tokens if long else (tokens * LONG)[:LONG], limit)

    # Hypothesis tries first what has few arguments, and of these what comes first in the alphabet; as it does
    # with values. So the very first example goes on with all rows, the last one first.
    @precondition(lambda self: len(self._in("idle")) > 1)
    @rule(data=st.data())
    @_step
    def continue_rows(self, data: st.DataObject) -> None:
        """Go on with some of the idle rows, in any order."""
        order = data.draw(st.permutations(self._in("idle")[::-1]))
        for row in order[data.draw(st.integers(0, len(order) - 2)) :]:
            self._extend(row, data.draw(_tokens_given), data.draw(_limits))

    def _run(self) -> None:
        held = {row.number for row in self.rows if row.held}
        finished_round = self.session.run()
        self.rounds += 1
        numbers = [record.row for record in finished_round.rows]
        assert numbers, "a round of no rows"
        assert len(set(numbers)) == len(numbers)
        assert all(record.tokens for record in finished_round.rows)
        for record in finished_round.rows:
            self.rows[record.row].take(record, self.options)
        if self.max_rows is not None:
            assert len(held | set(numbers)) <= self.max_rows

    @precondition(lambda self: self._can_run or self._in("waiting"))
    @rule()
    @_step
    def run(self) -> None:
        if self._can_run:
            self._run()
            return
        with pytest.raises(InvalidInput):
            self.session.run()

    @precondition(lambda self: self._can_run)
    @rule(rounds=st.integers(2, 8))
    @_step
    def step(self, rounds: int) -> None:
        for _ in range(rounds):
            if self._can_run:
                self._run()

    @precondition(lambda self: self._in("idle"))
    @rule(which=_numbers)
    @_step
    def drop(self, which: int) -> None:
        idle = self._in("idle")
        row = idle[which % len(idle)]
        self.session.release(row.number)
        row.state, row.held = "left", False

    @precondition(lambda self: self._in("waiting", "running", "returning"))
    @rule(which=_numbers)
    @_step
    def cancel(self, which: int) -> None:
        unfinished = self._in("waiting", "running", "returning")
        row = unfinished[which % len(unfinished)]
        self.session.cancel(row.number)
        row.state, row.held = "left", False

    @precondition(lambda self: self._in("left"))
    @rule(which=_numbers)
    @_step
    def forget(self, which: int) -> None:
        left = self._in("left")
        row = left[which % len(left)]
        self.session.forget(row.number)
        row.state = "forgotten"
        with pytest.raises((KeyError, InvalidInput)):
            self.session.text(row.number)

    @precondition(lambda self: self.refusals < self.rounds // 4)  # as it changes nothing
    @rule(which=_numbers, call=st.sampled_from(["extend", "release", "cancel", "forget", "add", "tokens"]))
    @_step
    def refused(self, which: int, call: str) -> None:
        """What cannot be is refused, and changes nothing."""
        self.refusals += 1
        fitting = {
            "extend": ("idle",),
            "tokens": (),
            "release": ("idle",),
            "cancel": ("waiting", "running", "returning"),
            "forget": ("left",),
        }
        numbers = [row.number for row in self.rows if row.state not in fitting.get(call, ())]
        numbers.append(len(self.rows))
        number = numbers[which % len(numbers)]
        with pytest.raises(InvalidInput):
            match call:
                case "extend":
                    self.session.extend(number, [1])
                case "tokens":
                    self.session.extend(number, [self.decoder.target.vocab_size])
                case "add":
                    self.session.add([1, self.decoder.target.vocab_size])
                case _:
                    getattr(self.session, call)(number)

    @precondition(lambda self: self.rounds > 20)  # so that sessions have time to grow
    @rule(max_rows=_rooms)
    @_step
    def close(self, max_rows: int | None) -> None:
        """Close the session, and open another one on the same decoder."""
        self._end()
        self._begin(max_rows)

    def _end(self) -> None:
        self.session.close()
        assert self.decoder.target.lengths == []
        for backend in self.decoder.drafter.backends:
            assert backend.lengths == []

    @invariant()
    @_noted
    def texts_are_the_models(self) -> None:
        for row in self.rows:
            if row.state != "forgotten":
                assert self.session.text(row.number) == row.text, f"row {row.number}, {row.state}"
        assert self.session.running == len(self._in("running"))
        assert self.session.unfinished == len(self._in("waiting", "running", "returning"))

    @invariant()
    @_noted
    def the_target_holds_the_texts(self) -> None:
        if not self.rows:
            return
        # The last token of a text is in no state yet.
        texts = [row.text[: len(row.text) - row.unread - 1] for row in self.rows if row.held]
        target = self.decoder.target
        assert sorted(target.lengths) == sorted(map(len, texts))
        if isinstance(target, ToyBackend):
            assert sorted(target.committed) == sorted(texts)

    def teardown(self) -> None:
        """Write every text to its end: nobody waits for ever."""
        try:
            if self.rows and not self.broken:
                self._finish()
                self._end()
        finally:
            self._stack.close()

    @_noted
    def _finish(self) -> None:
        while self._in("waiting", "running", "returning"):
            if self._can_run:
                self._run()
            else:
                idle = self._in("idle")[0]
                self.session.release(idle.number)
                idle.state, idle.held = "left", False
            self.the_target_holds_the_texts()
        self.texts_are_the_models()
