"""`Session`: rows that are written together, and that join, leave and go on between rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import groupby, islice
from time import perf_counter
from types import TracebackType
from typing import Any

import attrs
from torch import Tensor

from draftwood.base import locks
from draftwood.base.errors import InvalidInput
from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.given_cache import GivenCache
from draftwood.decoding.kept_text import KeptText, renew
from draftwood.decoding.loop import RoundLoop
from draftwood.decoding.new_rows import NewRows
from draftwood.decoding.round_records import Round, Statistics, peak_memory
from draftwood.distributions.constraints import Constraint
from draftwood.distributions.sampling import SamplingParams
from draftwood.protocols.model_prompt import ModelPrompt, PromptRow
from draftwood.protocols.vocabulary import unfitted


@attrs.define(eq=False)
class Session:
    """Rows of one target that are written together; `SpeculativeDecoder.session` makes one.

    `add` takes a prompt at any time between two rounds, and `run` makes a round. A round first lets in as
    many waiting rows as there is room for. Where the target gives logits with the prompts, it then draws the
    first token of each of these rows. Otherwise it grows and verifies one tree for each running row. A row's
    text does not depend on the other rows, unless the drafter `remembers`; then only its law does not. A row
    leaves when its text ends, or stays for its next turn if it was added with `kept=True`.

    A session is a context manager: whatever ends it, the states of its rows are released.

    Attributes:
        statistics: of all rows, so far.
    """

    _loop: RoundLoop
    _new: NewRows
    _max_rows: int | None
    statistics: Statistics
    _count: int = attrs.field(default=0, init=False)
    # Rows that are there, and the texts of these and of rows that have left, by number.
    _rows: dict[int, BatchRow] = attrs.field(factory=dict, init=False)
    _texts: dict[int, list[int]] = attrs.field(factory=dict, init=False)
    _waiting: deque[BatchRow] = attrs.field(factory=deque, init=False)
    _started: float = attrs.field(factory=perf_counter, init=False)
    _open: bool = attrs.field(default=False, init=False)
    _broken: BaseException | None = attrs.field(default=None, init=False)
    # Whether the backends were renewed and no row has joined since.
    _fresh: bool = attrs.field(default=True, init=False)

    def __enter__(self) -> Session:
        """Lock target and drafter for this session.

        Raises:
            InvalidInput: another call uses one of them.
        """
        loop = self._loop
        parts: dict[str, Any] = {"target": loop.target, "drafter": unfitted(loop.drafter)}
        parts |= {f"drafter's backend {n}": backend for n, backend in enumerate(loop.drafter.backends)}
        try:
            locks.acquire(self, parts, max(self.unfinished, 1))
            if loop.target.lengths and not loop.held:
                raise InvalidInput(
                    f"The target is already decoding {len(loop.target.lengths)} row(s) for another call; let "
                    "it end, or load the model into a second backend."
                )
            self._open = True
        except BaseException:
            locks.active.pop(self, None)
            if loop.held:  # by an earlier turn, which no one else would release
                self._release()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Release the states of all rows."""
        if not self._open:
            return
        self._open = False
        try:
            self.statistics.peak_memory = peak_memory()
            self._release()
        except BaseException:  # Ctrl-C again: whoever caught it must find no rows
            self._release()
            raise
        finally:
            locks.active.pop(self, None)

    def go_on(self, past: KeptText | GivenCache) -> None:
        """Let the rows, all of which wait, go on from states that are there already, if they still serve.

        Raises:
            InvalidInput: a cache that cannot be read, or that holds a whole text.
            UnsupportedModel: the target reads no caches.
        """
        if past.begin(self._loop, list(self._waiting)):
            self._loop.hold(list(self._waiting))
            self._waiting.clear()

    def keep(self, *, pictured: bool = False) -> KeptText | None:
        """Close the session without releasing its only row; None, and a closed session, where it runs.

        Args:
            pictured: see `KeptText`.
        """
        kept = None
        if self._open and len(self._rows) == 1 and self._rows[0].idle:
            kept = KeptText.of(self._rows[0], self._texts[0], self._loop, pictured=pictured)
            self._open = False
            self.statistics.peak_memory = peak_memory()
            locks.active.pop(self, None)
        self.close()
        return kept

    @property
    def running(self) -> int:
        """Rows that are being written."""
        return len(self._loop.rows)

    @property
    def unfinished(self) -> int:
        """Rows that are being written, or wait to be."""
        return len(self._loop.rows) + len(self._waiting)

    def add(
        self,
        prompt: Sequence[int] | PromptRow,
        *,
        max_new_tokens: int | None = None,
        sampling: SamplingParams | None = None,
        draft_sampling: SamplingParams | None = None,
        stop_strings: str | Sequence[str] | None = None,
        stopping_criteria: Sequence[Any] = (),
        logprobs: int | None = None,
        constraint: Constraint | None = None,
        policy_state: Any = None,
        seed: int | None = None,
        kept: bool = False,
    ) -> int:
        """Let a row join, at the next round that has room for it; its number, counted from 0.

        Code of the caller that the row brings (constraint, processors, criteria) ends this row and no other
        when it raises in a round: `RowRecord.error`. What it raises in this call comes out of this call.

        Args:
            prompt: token ids, or a row of a `ModelPrompt`, all of whose rows are added one after the other.
            max_new_tokens: default: the session's.
            sampling: how the target's tokens are chosen; default: as in the session.
            draft_sampling: the same for the draft; default: the session's where `sampling` is, else as
                `SpeculativeDecoder.generate` chooses it.
            stop_strings: strings that end the text, besides the session's, whose `tokenizer` they need.
            stopping_criteria: asked about this row, besides the session's.
            logprobs: record the log-probabilities of the tokens, and of this many likeliest tokens in the
                place of each; None: as in the session.
            constraint: the tokens that may be written.
            policy_state: initial state of a policy that learns; default: the policy's first state.
            seed: default: the next of those spawned from the session's.
            kept: whether the row stays when its text has ended, so that `extend` can go on with it. Until
                `release` it takes its room in every pass.

        Raises:
            InvalidInput: a prompt that the target cannot go on from, or a number that is none.
            IncompatibleStrategy: the verifier does not support this sampling.
        """
        number = self._count
        row = self._new.row(
            number,
            prompt,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            draft_sampling=draft_sampling,
            stop_strings=stop_strings,
            stopping_criteria=stopping_criteria,
            logprobs=logprobs,
            constraint=constraint,
            policy_state=policy_state,
            seed=seed,
            kept=kept,
        )
        self._rows[number], self._texts[number] = row, list(row.unread)
        self._count += 1
        self._waiting.append(row)
        return number

    def extend(
        self,
        row: int,
        tokens: Sequence[int],
        *,
        max_new_tokens: int | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        """Go on with a kept row whose text has ended, after `tokens` more, such as the next turn of a chat.

        The text that the target has read is not read again. Random numbers, settings, and what the row's
        policy has learnt go on.

        Raises:
            InvalidInput: a row that is not there or still runs, or tokens that the target cannot go on from.
        """
        state = self._idle(row)
        self._texts[row] += self._new.go_on(
            state,
            tokens,
            text=self._texts[row],
            max_new_tokens=max_new_tokens,
            constraint=constraint,
        )

    def release(self, row: int) -> None:
        """Forget a kept row whose text has ended.

        Raises:
            InvalidInput: a row that is not there or still runs.
        """
        state = self._idle(row)
        with self._breaking():
            self._loop.release([state])
        del self._rows[row]

    def cancel(self, row: int) -> None:
        """End a row that waits or is being written, at its present length; the others are not affected.

        Raises:
            InvalidInput: a row that is not there, or whose text has ended.
        """
        state = self._rows.get(row)
        if state is None or state.idle:
            raise InvalidInput(f"Row {row} is not being written, so there is nothing to cancel.")
        if state.place is None:
            self._waiting.remove(state)
        else:
            with self._breaking():
                self._loop.release([state])
        del self._rows[row]

    def forget(self, row: int) -> None:
        """Drop the text of a row that has left, as a session that goes on for long must.

        Raises:
            InvalidInput: a row that is not there, or has not left.
        """
        if row in self._rows or row not in self._texts:
            raise InvalidInput(
                f"Row {row} is still being written or kept, or never existed; forget() takes rows that "
                "have ended."
            )
        del self._texts[row]

    def text(self, row: int) -> list[int]:
        """Returns the tokens of a row: its prompt, its new tokens, and those that `extend` added."""
        return list(self._texts[row])

    def run(self) -> Round:
        """Let waiting rows in, where there is room, or make a round.

        An error in the prefill of joining rows changes nothing, and they keep waiting. After any other error
        the rows are in the middle of a round, and the session can only be closed.

        Raises:
            InvalidInput: no row is there to be written, or none can be.
        """
        if not self._open:
            raise InvalidInput("The session is not open; use it in a with statement.")
        if self._broken is not None:
            raise InvalidInput(
                f"A round of this session has failed ({type(self._broken).__name__}), so its rows are "
                "in the middle of a round; close it and open another."
            )
        if not self.unfinished:
            raise InvalidInput("No row is left to be written; add() one first.")
        finished_round = self._next()
        for record in finished_round.rows:
            self._texts[record.row] += record.tokens
            if record.finished and not self._rows[record.row].idle:
                del self._rows[record.row]
        statistics = self.statistics
        statistics.history.append(finished_round)
        statistics.seconds = perf_counter() - self._started
        statistics.first_token_seconds = statistics.first_token_seconds or statistics.seconds
        return finished_round

    def _next(self) -> Round:
        loop = self._loop
        returning, undrafted = list[BatchRow](), list[BatchRow]()
        for row in loop.held:
            if row.unread:
                returning.append(row)
            if row.undrafted is not None:
                undrafted.append(row)
        if undrafted:
            self._prefill_drafter(undrafted)
        if self._waiting and not returning and (joining := self._joining()):
            logits, seconds = self._read(joining)
            if logits is not None:
                with self._breaking():
                    return self._prefilled(loop.join(joining, logits, seconds=seconds))
            self.statistics.prefill_seconds += seconds
            self._prefill_drafter(joining)
        with self._breaking():
            return self._prefilled(loop.resume(returning)) if returning else loop.run()

    @contextmanager
    def _breaking(self) -> Iterator[None]:
        """Mark the session as broken by an error inside: its rows are in the middle of a round."""
        try:
            yield
        except BaseException as error:
            self._broken = error
            raise

    def _prefill_drafter(self, joined: Sequence[BatchRow]) -> None:
        started = perf_counter()
        with self._breaking():
            self._loop.prefill_drafter(joined)
        self.statistics.prefill_seconds += perf_counter() - started

    def _joining(self) -> list[BatchRow]:
        """The rows that wait and have room; they wait on until the target has read their prompts."""
        held = len(self._loop.held)
        room = len(self._waiting) if self._max_rows is None else self._max_rows - held
        if room < 1 and not self.running:
            raise InvalidInput(
                f"max_rows is {self._max_rows}, and {held} kept row(s) whose texts have ended use it up; "
                "release() or extend() one of them."
            )
        joining = list(islice(self._waiting, max(room, 0)))
        if not joining:
            return []
        # Rows of one prompt of more than tokens are read together, and without others.
        _, together = next(groupby(joining, key=_prompt_of))
        joining = list(together)
        given = _prompt_of(joining[0])
        if given is not None and len(joining) < len(given):
            if not self.running:
                raise InvalidInput(
                    f"A prompt of {len(given)} rows is read at once, and {len(joining)} of them can join; "
                    "add all of them, and leave room for them (max_rows)."
                )
            return []
        return joining

    def _read(self, joining: Sequence[BatchRow]) -> tuple[Tensor | None, float]:
        """Let the target read the prompts; logits for the first tokens where it gives them, and the time."""
        started = perf_counter()
        if not self._fresh and not self._loop.held:
            renew(self._loop.target, self._loop.drafter)
        self._fresh = False
        logits = self._loop.prefill(joining)
        for _ in joining:
            self._waiting.popleft()
        return logits, perf_counter() - started

    def _prefilled(self, prefill: Round) -> Round:
        self.statistics.prefill_seconds += prefill.seconds
        return prefill

    def _release(self) -> None:
        try:
            self._loop.target.release()
        finally:
            self._loop.drafter.release()

    def _idle(self, row: int) -> BatchRow:
        state = self._rows.get(row)
        if state is None or not state.idle:
            why = "is not there" if state is None else "is still being written, or was not kept"
            raise InvalidInput(
                f"Row {row} {why}; extend() and release() are for rows of add(..., kept=True) whose "
                "text has ended."
            )
        return state


def _prompt_of(row: BatchRow) -> ModelPrompt | None:
    return None if row.given is None else row.given.prompt
