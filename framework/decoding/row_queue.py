"""`RowQueue`: any number of prompts through a few rows, whatever becomes of one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter
from types import TracebackType
from typing import Any, Unpack

import attrs

from draftwood.base.errors import is_ctrl_c, sentence, without_frames
from draftwood.base.machine_faults import machine_fault
from draftwood.decoding.metrics import value
from draftwood.decoding.new_rows import checked_count
from draftwood.decoding.round_records import RowRecord
from draftwood.decoding.session import Session
from draftwood.decoding.text_request import RequestOptions, TextRequest


@attrs.define(eq=False)
class QueuedText:
    """A prompt in a `RowQueue`, and the text that follows it.

    Attributes:
        number: counts the prompts that were added, from 0.
        request: the prompt and everything that decides its text.
        tokens: written so far; after a fault in rows that run with it, from its start again.
        finished: why the text ended, as in `RowRecord`; `"refused"` where it cannot be written, None before.
        refused: a sentence that says why.
        error: the exception that caused the refusal, without its traceback.
        logprobs: log-probabilities of `tokens`, where the request asks for them.
        top_logprobs: for each of `tokens`, the likeliest tokens in its place and their log-probabilities.
        counts: rounds, drafted, accepted, depth, tokens and prefill_tokens, as in
            `draftwood.decoding.metrics`.
        seconds: from its start in a row to its end, which it shared with the rows that ran with it.
    """

    number: int
    request: TextRequest
    tokens: list[int] = attrs.field(init=False)
    finished: str | None = None
    refused: str | None = None
    error: BaseException | None = None
    logprobs: list[float] = attrs.field(init=False)
    top_logprobs: list[list[tuple[int, float]]] = attrs.field(init=False)
    counts: dict[str, float] = attrs.field(init=False)
    seconds: float = 0.0
    _started: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Write it from its start."""
        self.tokens, self.logprobs, self.top_logprobs = [], [], []
        self.finished, self.counts = None, dict.fromkeys(_COUNTS, 0.0)
        self._started = perf_counter()

    @property
    def prompt(self) -> Sequence[int]:
        """The tokens that it follows."""
        return self.request.prompt

    def take(self, record: RowRecord, *, prefill: bool) -> None:
        """Append the tokens of a round, or of the prompt's pass."""
        counts, tokens = self.counts, list(record.tokens)
        self.tokens += tokens
        self.logprobs += record.logprobs or ()
        self.top_logprobs += map(list, record.likeliest or ())
        counts["tokens"] += len(tokens)
        counts["prefill_tokens"] += len(tokens) if prefill else 0
        counts["rounds"] += not prefill
        counts["drafted"] += record.outcome.drafted
        counts["accepted"] += record.outcome.accepted
        counts["depth"] += record.depth
        self.finished = record.finished
        self.seconds = perf_counter() - self._started

    def refuse(self, error: BaseException) -> None:
        """End it without a text, by `error`."""
        self.begin()
        fault = machine_fault(error)
        said = sentence(error) if fault is None else fault.message
        self.finished, self.refused, self.error = "refused", said, without_frames(error)

    @property
    def statistics(self) -> dict[str, float]:
        """Returns the figures of this text by name; times include all rows that ran together with it."""
        counts = self.counts
        return {
            "new_tokens": int(counts["tokens"]),
            "rounds": int(counts["rounds"]),
            "drafted": int(counts["drafted"]),
            "accepted": int(counts["accepted"]),
            **{name: value(name, counts) for name in _FIGURES},
            "seconds": self.seconds,
        }


_COUNTS = ("tokens", "prefill_tokens", "rounds", "drafted", "accepted", "depth")
_FIGURES = ("tokens_per_round", "acceptance_rate", "path_length", "tree_size")


def _as_rows(rows: Any) -> int:
    return checked_count("rows", rows)


@attrs.define(eq=False)
class RowQueue:
    """Prompts that are written `rows` at a time: one that ends makes room for the next.

    A text depends on its request and nothing else, unless the drafter `remembers`. So a fault in the middle
    loses nothing: where a pass runs out of memory, or fails in another way, the texts that were being
    written begin again, half as many at once; one that fails when it is the only one is refused, and the
    others go on.
    An error of code that a request brings (constraint, processor, criterion) ends that text and no other.

    Attributes:
        open: makes a session without rows, such as `partial(decoder.session, max_new_tokens=64)`.
        rows: number of texts that are written at once.
        sums: sums over all texts that have ended, defined in `draftwood.decoding.metrics`; `seconds` is the
            time of the rounds.
    """

    open: Callable[[], Session]
    rows: int = attrs.field(converter=_as_rows)
    sums: dict[str, float] = attrs.field(factory=lambda: dict.fromkeys((*_COUNTS, "seconds"), 0.0))
    _count: int = attrs.field(default=0, init=False)
    _waiting: deque[QueuedText] = attrs.field(factory=deque, init=False)
    _running: dict[int, QueuedText] = attrs.field(factory=dict, init=False)
    _session: Session | None = attrs.field(default=None, init=False)
    # How many run at once for now, and the texts that ended since there were fewer.
    _room: int = attrs.field(init=False)
    _since: int = attrs.field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._room = self.rows

    def __enter__(self) -> RowQueue:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def unfinished(self) -> int:
        """Texts that are being written, or wait."""
        return len(self._waiting) + len(self._running)

    def add(self, prompt: Sequence[int], *, seed: int, **options: Unpack[RequestOptions]) -> QueuedText:
        """Append a prompt, which waits for a row; takes the arguments of `Session.add`."""
        return self.append(TextRequest(prompt, seed, **options))

    def append(self, request: TextRequest) -> QueuedText:
        """Append a request, which waits for a row."""
        text = QueuedText(self._count, request)
        self._count += 1
        self._waiting.append(text)
        return text

    def run(self) -> list[QueuedText]:
        """A round of the rows that run; the texts that it changed.

        Raises:
            DraftwoodError: the session cannot be opened. An error of a round is met as the class says.
            Exception: a fault of the machine after which fewer rows do not help, such as a lost process.
        """
        started = perf_counter()
        if self._session is None:
            self._session = self.open().__enter__()
        try:
            return self._round(self._session)
        except Exception as error:
            fault = machine_fault(error)
            if fault is not None and not fault.retry:
                raise
            failure = without_frames(error)
        finally:
            self.sums["seconds"] += perf_counter() - started
        # After the handler, where no tensor of the pass is kept alive by the error any more.
        return self._after(failure)

    def cancel(self, text: QueuedText) -> None:
        """End a text at its present length; does nothing if it has ended."""
        if text in self._waiting:
            self._waiting.remove(text)
        row = next((row for row, running in self._running.items() if running is text), None)
        if row is not None and self._session is not None:
            del self._running[row]
            try:
                self._session.cancel(row)
                self._session.forget(row)
            except Exception:  # such as a lack of memory where the states of the others move up
                self._abandon()

    def close(self) -> None:
        """Release the states of all rows; unfinished texts wait."""
        session, self._session = self._session, None
        again = list(self._running.values())
        self._running.clear()
        for text in again:
            text.begin()
        self._waiting.extendleft(reversed(again))
        if session is not None:
            session.close()

    def _abandon(self) -> None:
        """Close a session that has failed, whatever that raises: it has tried twice to release its rows."""
        with suppress(Exception):
            self.close()

    def _round(self, session: Session) -> list[QueuedText]:
        if refused := self._let_in(session):
            return refused
        if not self._running:
            return []
        changed, finished_round = [], session.run()
        for record in finished_round.rows:
            text = self._running[record.row]
            text.take(record, prefill=finished_round.prefill)
            changed.append(text)
            if record.finished:
                del self._running[record.row]
                session.forget(record.row)
                if record.error is None:
                    self._ended(text)
                else:
                    self._failed(text, record.error)
        session.statistics.history.clear()
        return changed

    def _let_in(self, session: Session) -> list[QueuedText]:
        """Give free rows to those that wait; the texts that no row can take."""
        refused = []
        while self._waiting and len(self._running) < self._room:
            text = self._waiting[0]
            text.begin()
            try:
                row = text.request.join(session)
            except BaseException as error:
                if is_ctrl_c(error):
                    raise
                self._waiting.popleft()
                self._failed(text, error)
                if text.finished:
                    refused.append(text)
                continue
            self._waiting.popleft()
            self._running[row] = text
        return refused

    def _ended(self, text: QueuedText) -> None:
        for name, count in text.counts.items():
            self.sums[name] += count
        self._since += 1
        if self._room < self.rows and self._since >= self.rows:
            self._room, self._since = min(2 * self._room, self.rows), 0

    def _failed(self, text: QueuedText, error: BaseException) -> None:
        """Refuse a text that has failed by itself, or let it wait where it may have wanted for memory."""
        fault = machine_fault(error)
        if fault is None or not fault.retry or not self._running:
            text.refuse(error)
            return
        text.begin()
        self._waiting.appendleft(text)
        self._room, self._since = max(min(self._room, len(self._running) + 1) // 2, 1), 0

    def _after(self, error: BaseException) -> list[QueuedText]:
        """Begin again with fewer rows; a row that failed when it was the only one is refused."""
        running = list(self._running.values())
        self._since = 0
        if len(running) > 1:
            self._abandon()
            self._room = len(running) // 2
            return []
        self._running.clear()
        self._abandon()
        self._room = self.rows
        for text in running:
            text.refuse(error)
        return running
