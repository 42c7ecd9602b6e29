"""`RowQueue`: any number of prompts through a few rows, whatever becomes of one of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from types import TracebackType
from typing import Any

import attrs
import torch

from draftwood.constraints import Constraint
from draftwood.errors import DraftwoodError
from draftwood.metrics import value
from draftwood.round_records import RowRecord
from draftwood.session import Session, checked_count

FAULTS = (DraftwoodError, MemoryError, torch.OutOfMemoryError)
"""What one row can bring upon all that run beside it."""


@attrs.define(eq=False)
class QueuedText:
    """A prompt in a `RowQueue`, and what was written behind it.

    Attributes:
        number: counts what was added, from 0.
        prompt: token ids.
        seed: of its random numbers.
        max_new_tokens: None: the session's own.
        constraint: what may be written, or None.
        tokens: what was written so far; after a fault in the rows beside it, from its start again.
        finished: why the text ended, as in `RowRecord`; `"refused"` where it cannot be written, None before.
        refused: a sentence that says why.
        counts: rounds, drafted, accepted, depth, tokens and prefill_tokens, as `draftwood.metrics` has them.
        seconds: from its start in a row to its end, which it shared with the rows beside it.
    """

    number: int
    prompt: Sequence[int]
    seed: int
    max_new_tokens: int | None = None
    constraint: Constraint | None = None
    tokens: list[int] = attrs.field(init=False)
    finished: str | None = None
    refused: str | None = None
    counts: dict[str, float] = attrs.field(init=False)
    seconds: float = 0.0
    _started: float = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Write it from its start."""
        self.tokens, self.counts = [], dict.fromkeys(_COUNTS, 0.0)
        self._started = perf_counter()

    def take(self, record: RowRecord, *, prefill: bool) -> None:
        """What a round, or the prompt's own pass, made of it."""
        counts, tokens = self.counts, list(record.tokens)
        self.tokens += tokens
        counts["tokens"] += len(tokens)
        counts["prefill_tokens"] += len(tokens) if prefill else 0
        counts["rounds"] += not prefill
        counts["drafted"] += record.outcome.drafted
        counts["accepted"] += record.outcome.accepted
        counts["depth"] += record.depth
        self.finished = record.finished
        self.seconds = perf_counter() - self._started

    def refuse(self, reason: str) -> None:
        """End it without a text."""
        self.begin()
        self.finished, self.refused = "refused", reason

    @property
    def statistics(self) -> dict[str, float]:
        """Of this text alone, by name; times are those of all rows that ran beside it."""
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

    A text depends on its prompt and seed alone, unless the drafter `remembers`. So a fault in the middle
    loses nothing: where a pass runs out of memory, or a row brings an error upon all, the texts that were
    being written begin again, half as many at once; one that fails alone is refused, and the others go on.

    Attributes:
        open: makes a session without rows, such as `partial(decoder.session, max_new_tokens=64)`.
        rows: texts that are written at once.
        sums: of all texts that have ended, as `draftwood.metrics` has them; `seconds` are those of rounds.
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

    def add(
        self,
        prompt: Sequence[int],
        *,
        seed: int,
        max_new_tokens: int | None = None,
        constraint: Constraint | None = None,
    ) -> QueuedText:
        """A prompt that waits for a row, at the end of the queue."""
        text = QueuedText(self._count, prompt, seed, max_new_tokens, constraint)
        self._count += 1
        self._waiting.append(text)
        return text

    def run(self) -> list[QueuedText]:
        """A round of the rows that run; the texts that it changed.

        Raises:
            DraftwoodError: the session cannot be opened. What goes wrong in a round is refused, row by row.
        """
        started = perf_counter()
        if self._session is None:
            self._session = self.open().__enter__()
        try:
            return self._round(self._session)
        except FAULTS as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        finally:
            self.sums["seconds"] += perf_counter() - started
        # Behind the handler, where the error keeps no tensor of the pass alive any more.
        return self._after(reason)

    def cancel(self, text: QueuedText) -> None:
        """End a text where it stands; nothing happens where it has ended."""
        if text in self._waiting:
            self._waiting.remove(text)
        row = next((row for row, running in self._running.items() if running is text), None)
        if row is not None and self._session is not None:
            del self._running[row]
            self._session.cancel(row)
            self._session.forget(row)

    def close(self) -> None:
        """Release the states of all rows; what was being written waits."""
        session, self._session = self._session, None
        again = list(self._running.values())
        self._running.clear()
        for text in again:
            text.begin()
        self._waiting.extendleft(reversed(again))
        if session is not None:
            session.close()

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
            if text.finished:
                del self._running[record.row]
                session.forget(record.row)
                self._ended(text)
        session.statistics.history.clear()
        return changed

    def _let_in(self, session: Session) -> list[QueuedText]:
        """Give free rows to those that wait; the texts that no row can take."""
        refused = []
        while self._waiting and len(self._running) < self._room:
            text = self._waiting.popleft()
            text.begin()
            try:
                row = session.add(
                    text.prompt,
                    seed=text.seed,
                    max_new_tokens=text.max_new_tokens,
                    constraint=text.constraint,
                )
            except DraftwoodError as error:
                text.refuse(str(error))
                refused.append(text)
                continue
            self._running[row] = text
        return refused

    def _ended(self, text: QueuedText) -> None:
        for name, count in text.counts.items():
            self.sums[name] += count
        self._since += 1
        if self._room < self.rows and self._since >= self.rows:
            self._room, self._since = min(2 * self._room, self.rows), 0

    def _after(self, reason: str) -> list[QueuedText]:
        """Begin again with fewer rows; a row that failed alone is refused."""
        running = list(self._running.values())
        self._since = 0
        if len(running) > 1:
            self.close()
            self._room = len(running) // 2
            return []
        self._running.clear()
        self.close()
        self._room = self.rows
        for text in running:
            text.refuse(reason)
        return running
