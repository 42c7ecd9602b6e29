"""A state machine over the rows of a `Session`: each is at any time the same as without the others.

Rows of different settings join, are written, stay, go on with another turn, are dropped, cancelled and
forgotten, in any order, and the session is closed and another one opened. Every row is compared round by
round with a session in which it is the only one: the tokens, and how many of how many drafts were accepted,
so that a draft that read another row's text is seen too. The state of the target is compared with the texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from typing import Any, ClassVar

import hypothesis
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from draftwood import IncompatibleStrategy, InvalidInput
from draftwood.testing import ToyBackend
from tests.framework.row_model import Options, Row, Turn
from tests.framework.row_options import CONSTRAINTS, RowOptions, drawn_options
from tests.framework.row_subjects import doubled_states, subjects

MOST_ROWS = 8
LONG = 70
"""Tokens of a turn that takes two passes of the target."""


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
_constraints = st.none() | st.none() | st.sampled_from(sorted(CONSTRAINTS))


class RowsMachine(RuleBasedStateMachine):
    """Random calls on sessions of one kind of backend.

    Attributes:
        kind: one of `row_subjects.KINDS`.
        counts: steps so far, by rule.
    """

    kind: ClassVar[str] = "toy"
    counts: ClassVar[Counter[str]] = Counter()

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
        self.subject = known[subject % len(known)]
        self.options = Options(self.subject, 0.0 if self.subject.greedy else temperature, ends)
        self.decoder = self.subject.decoder()
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

    def _turn(self, row: int, tokens: Sequence[int], limit: int, constraint: str | None) -> Turn:
        if self.subject.remembers and constraint == "fails":
            constraint = None  # how often it is asked depends on the drafts
        return Turn(self._given(row, tokens), limit, constraint)

    def _add(
        self,
        prompt: Sequence[int],
        limit: int,
        seed: int,
        *,
        kept: bool,
        options: RowOptions | None = None,
        constraint: str | None = None,
    ) -> None:
        number = len(self.rows)
        options = options or RowOptions()
        turn = self._turn(number, prompt, limit, constraint)
        if self.subject.judges_greedily and options.temperature:
            with pytest.raises(IncompatibleStrategy):
                self.session.add(turn.tokens, seed=seed, **options.arguments | turn.arguments)
        if self.subject.greedy:
            options = options.greedily()
        given = self.session.add(turn.tokens, seed=seed, kept=kept, **options.arguments | turn.arguments)
        assert given == number
        self.rows.append(Row(number, seed, kept, options, (turn,), list(turn.tokens)))

    @precondition(lambda self: len(self.present) < MOST_ROWS)
    @rule(
        prompt=_tokens_given,
        limit=_limits,
        seed=_numbers,
        kept=st.integers(0, 3),
        options=drawn_options,
        constraint=_constraints,
    )
    @_step
    def add(
        self,
        prompt: list[int],
        limit: int,
        seed: int,
        kept: int,
        options: RowOptions,
        constraint: str | None,
    ) -> None:
        self._add(prompt, limit, seed, kept=kept > 0, options=options, constraint=constraint)

    @precondition(lambda self: len(self.present) < MOST_ROWS - 1)
    @rule(prompts=st.lists(_tokens_given, min_size=2, max_size=3), limit=_limits, options=drawn_options)
    @_step
    def add_several(self, prompts: list[list[int]], limit: int, options: RowOptions) -> None:
        """Add rows that will be there for long, the first one with different settings."""
        for seed, prompt in enumerate(prompts[: MOST_ROWS - len(self.present)]):
            self._add(prompt, limit, seed, kept=True, options=RowOptions() if seed else options)

    def _extend(self, row: Row, tokens: Sequence[int], limit: int, constraint: str | None = None) -> None:
        turn = self._turn(row.number, tokens, limit, constraint)
        self.session.extend(row.number, turn.tokens, **turn.arguments)
        row.turns = (*row.turns, turn)
        row.text += turn.tokens
        row.unread = len(turn.tokens)
        row.written = []
        row.state = "returning"

    @precondition(lambda self: self._in("idle"))
    @rule(
        which=_numbers,
        tokens=_tokens_given,
        limit=_limits,
        long=st.integers(0, 9),
        constraint=_constraints,
    )
    @_step
    def extend(self, which: int, tokens: list[int], limit: int, long: int, constraint: str | None) -> None:
        idle = self._in("idle")
        given = tokens if long else (tokens * LONG)[:LONG]
        self._extend(idle[which % len(idle)], given, limit, constraint)

    # Hypothesis tries first what has few arguments, and of these what comes first in the alphabet; so it does
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
        for record in finished_round.rows:
            assert record.tokens or record.finished in ("criteria", "error")
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
        with pytest.raises(InvalidInput, match=r"release\(\) or extend\(\) one"):
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
        """A call that cannot be is refused, and changes nothing."""
        self.refusals += 1
        fitting = {
            "extend": ("idle",),
            "release": ("idle",),
            "cancel": ("waiting", "running", "returning"),
            "forget": ("left",),
        }
        numbers = [row.number for row in self.rows if row.state not in fitting.get(call, ())]
        numbers.append(len(self.rows))
        number = numbers[which % len(numbers)]
        outside = self.decoder.target.vocab_size
        calls: dict[str, Callable[[], Any]] = {
            "extend": lambda: self.session.extend(number, [1]),
            "tokens": lambda: self.session.extend(number, [outside]),
            "add": lambda: self.session.add([1, outside]),
        }
        with pytest.raises(InvalidInput):
            calls.get(call, lambda: getattr(self.session, call)(number))()

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
        if self.rows:
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


def run_machine(
    kind: str, *, examples: int, steps: int, seed: int | None = None, raises: bool = True
) -> tuple[Counter[str], Exception | None]:
    """Run so many examples of so many steps on one kind of backend.

    Args:
        kind: one of `row_subjects.KINDS`.
        examples: sequences of calls.
        steps: of each.
        seed: None: as Hypothesis' profile has it.
        raises: whether what was found is raised, with the shortest calls that show it; else it comes back.

    Returns:
        Calls by rule, and their sum `"steps"`; and the first error.
    """
    machine = type("Rows", (RowsMachine,), {"kind": kind, "counts": Counter()})
    counts: Counter[str] = machine.counts  # type: ignore[attr-defined]
    if seed is not None:
        machine = hypothesis.seed(seed)(machine)
    budget = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        database=None,
        phases=[Phase.generate, *([Phase.shrink] if raises else [])],
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )
    try:
        run_state_machine_as_test(machine, settings=budget)
    except Exception as error:
        if raises:
            raise
        return counts, error
    return counts, None
