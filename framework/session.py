"""`Session`: rows that are written together, and that join, leave and go on between rounds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from numbers import Integral
from time import perf_counter
from types import TracebackType
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import locks, policy_states
from draftwood.batch_row import BatchRow
from draftwood.constraints import ConstrainedRow, Constraint
from draftwood.errors import InvalidInput
from draftwood.loop import RoundLoop
from draftwood.prefixes import RowText
from draftwood.processing import check_processors
from draftwood.prompts import as_prompts, check_prompts
from draftwood.protocols import TreePolicy
from draftwood.randomness import SpawnedSeeds, Streams
from draftwood.round_records import Round, Statistics, peak_memory
from draftwood.stopping import CriteriaBatch


@attrs.frozen(eq=False)
class _Joining:
    """A row, and the tokens `[length]` that the target is still to read of it."""

    row: BatchRow
    tokens: Tensor


@attrs.define(eq=False)
class Session:
    """Rows of one target that are written together; `SpeculativeDecoder.session` makes one.

    `add` takes a prompt at any time between two rounds, and `run` makes a round: of the rows that wait it
    lets in as many as there is room for, and where the target can it gives each its first token; otherwise
    all running rows go on by a tree each. What a row writes does not depend on who runs beside it, unless the
    drafter `remembers`; then its law does not. A row leaves when its text ends, or stays for its next turn,
    if it was added with `kept=True`.

    A session is a context manager: whatever ends it, the states of its rows are released.

    Attributes:
        statistics: of all rows, so far.
    """

    _loop: RoundLoop
    _policy: TreePolicy
    _seeds: SpawnedSeeds
    _max_new_tokens: int
    _max_rows: int | None
    _criteria: Sequence[Any]
    _pad: int
    statistics: Statistics
    _batch: Tensor | None = None
    _count: int = attrs.field(default=0, init=False)
    _rows: dict[int, BatchRow] = attrs.field(factory=dict, init=False)
    _texts: dict[int, list[int]] = attrs.field(factory=dict, init=False)
    _waiting: deque[_Joining] = attrs.field(factory=deque, init=False)
    _returning: list[_Joining] = attrs.field(factory=list, init=False)
    # Rows whose prompts the drafter has not read.
    _undrafted: list[_Joining] = attrs.field(factory=list, init=False)
    _started: float = attrs.field(factory=perf_counter, init=False)
    _open: bool = attrs.field(default=False, init=False)

    def __enter__(self) -> Session:
        """Lock target and drafter for this session.

        Raises:
            InvalidInput: another call uses one of them.
        """
        loop = self._loop
        parts: dict[str, Any] = {"target": loop.target, "drafter": loop.drafter}
        parts |= {f"drafter's backend {n}": backend for n, backend in enumerate(loop.drafter.backends)}
        try:
            locks.acquire(self, parts, max(self.unfinished, 1))
            if loop.target.lengths:
                raise InvalidInput(
                    f"The target is already decoding {len(loop.target.lengths)} row(s) for another call; let "
                    "it end, or load the model into a second backend."
                )
            self._open = True
        except BaseException:
            locks.active.pop(self, None)
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

    @property
    def running(self) -> int:
        """Rows that are being written."""
        return len(self._loop.rows)

    @property
    def unfinished(self) -> int:
        """Rows that are being written, or wait to be."""
        return self.running + len(self._waiting) + len(self._returning)

    def add(
        self,
        prompt: Sequence[int],
        *,
        max_new_tokens: int | None = None,
        constraint: Constraint | None = None,
        policy_state: Any = None,
        seed: int | None = None,
        kept: bool = False,
    ) -> int:
        """Let a row join, at the next round that has room for it; its number, counted from 0.

        Args:
            prompt: token ids.
            max_new_tokens: default: the session's.
            constraint: what may be written.
            policy_state: what a policy that learns starts from; default: it starts afresh.
            seed: default: the next of those spawned from the session's.
            kept: whether the row stays when its text has ended, so that `extend` can go on with it. Until
                `release` it takes its room in every pass.

        Raises:
            InvalidInput: a prompt that the target cannot go on from, or a number that is none.
        """
        loop, number = self._loop, self._count
        (tokens,) = as_prompts([prompt])
        check_prompts([tokens], loop.target)
        (state,) = policy_states.row_states(self._policy, policy_state, 1)
        row = BatchRow(
            number,
            tokens[-1],
            self._policy,
            Streams.seeded(self._seeds.take(seed)),
            self._row_text(tokens, number),
            self._constrained(constraint, tokens),
            state,
            kept=kept,
        )
        loop.stops.join(*self._limits(max_new_tokens, len(tokens)))
        self._watch(number, tokens)
        self._rows[number], self._texts[number] = row, tokens
        self._count += 1
        self._waiting.append(_Joining(row, torch.tensor(tokens, dtype=torch.int64)))
        return number

    def extend(
        self,
        row: int,
        tokens: Sequence[int],
        *,
        max_new_tokens: int | None = None,
        constraint: Constraint | None = None,
    ) -> None:
        """Go on with a kept row whose text has ended, behind `tokens` more, such as the next turn of a chat.

        What the row has read is not read again. Random numbers and what its policy learnt go on.

        Raises:
            InvalidInput: a row that is not there or still runs, or tokens that the target cannot go on from.
        """
        state = self._idle(row)
        (more,) = as_prompts([tokens])
        text = self._texts[row] + more
        check_prompts([more], self._loop.target)
        check_prompts([text], self._loop.target)
        state.constraint = self._constrained(constraint, text)
        self._loop.stops.extend(row, *self._limits(max_new_tokens, len(text)))
        self._watch(row, text)
        self._texts[row] = text
        self._returning.append(_Joining(state, torch.tensor(more, dtype=torch.int64)))
        state.idle = False

    def release(self, row: int) -> None:
        """Forget a kept row whose text has ended.

        Raises:
            InvalidInput: a row that is not there or still runs.
        """
        state = self._idle(row)
        self._prefill_drafter()
        self._loop.release([state])
        del self._rows[row]

    def cancel(self, row: int) -> None:
        """End a row that waits or is being written, where it stands; the others go on as they would.

        Raises:
            InvalidInput: a row that is not there, or whose text has ended.
        """
        state = self._rows.get(row)
        if state is None or state.idle:
            raise InvalidInput(f"Row {row} is not being written, so there is nothing to cancel.")
        self._prefill_drafter()
        self._waiting = deque(one for one in self._waiting if one.row is not state)
        self._returning = [one for one in self._returning if one.row is not state]
        if any(one is state for one in self._loop.held):
            self._loop.release([state])
        self._leave(row)

    def forget(self, row: int) -> None:
        """Drop the text of a row that has left, as a session that goes on for long must.

        Raises:
            InvalidInput: a row that is not there, or has not left.
        """
        if row in self._rows or row not in self._texts:
            raise InvalidInput(f"Row {row} is there, or never was; forget() is for rows that have left.")
        del self._texts[row]

    def text(self, row: int) -> list[int]:
        """The tokens of a row: its prompt, what was written, and what `extend` put between."""
        return list(self._texts[row])

    def run(self) -> Round:
        """Let waiting rows in, where there is room, or make a round.

        Raises:
            InvalidInput: no row is there to be written.
        """
        if not self._open:
            raise InvalidInput("The session is not open; use it in a with statement.")
        if not self.unfinished:
            raise InvalidInput("No row is left to be written; add() one first.")
        finished_round = self._next()
        for record in finished_round.rows:
            self._texts[record.row] += record.tokens
            if record.finished and not self._rows[record.row].kept:
                self._leave(record.row)
        statistics = self.statistics
        statistics.history.append(finished_round)
        statistics.seconds = perf_counter() - self._started
        statistics.first_token_seconds = statistics.first_token_seconds or statistics.seconds
        return finished_round

    def _next(self) -> Round:
        loop = self._loop
        started = perf_counter()
        self._prefill_drafter()
        self.statistics.prefill_seconds += perf_counter() - started
        if self._returning:
            returning, self._returning = self._returning, []
            return self._timed(loop.resume([one.row for one in returning], [one.tokens for one in returning]))
        room = len(self._waiting) if self._max_rows is None else self._max_rows - len(loop.held)
        joining = [self._waiting.popleft() for _ in range(min(room, len(self._waiting)))]
        if not joining:
            return loop.run()
        rows = [one.row for one in joining]
        if loop.target.gives_first_logits:
            joined = loop.join(rows, [one.tokens for one in joining])
            held = set(map(id, loop.held))
            self._undrafted = [one for one in joining if id(one.row) in held]
            return self._timed(joined)
        started = perf_counter()
        loop.target.prefill([one.tokens[:-1] for one in joining])
        loop.drafter.prefill([one.tokens[:-1] for one in joining])
        self.statistics.prefill_seconds += perf_counter() - started
        loop.held += rows
        loop.rows += rows
        return loop.run()

    def _leave(self, row: int) -> None:
        del self._rows[row]
        if self._batch is None:  # those of a padded batch are asked about all rows together
            self._loop.stops.forget(row)

    def _prefill_drafter(self) -> None:
        undrafted, self._undrafted = self._undrafted, []
        if undrafted:
            self._loop.drafter.prefill([one.tokens for one in undrafted])

    def _timed(self, prefill: Round) -> Round:
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
            what = "is not there" if state is None else "is still being written, or was not kept"
            raise InvalidInput(
                f"Row {row} {what}; extend() and release() are for rows of add(..., kept=True) whose "
                "text has ended."
            )
        return state

    def _row_text(self, tokens: Sequence[int], number: int) -> RowText | None:
        loop = self._loop
        processors = [*loop.sampling.processors, *loop.draft_sampling.processors]
        if not (loop.sampling.reads_prefix or loop.draft_sampling.reads_prefix):
            return None
        if self._batch is None:
            text = RowText.of(torch.tensor(tokens, device=loop.target.device))
        else:
            padded = self._batch.to(loop.target.device, torch.int64)
            text = RowText.of(padded[number], row=number, rows=len(padded))
        if not number:
            check_processors(processors, [text], vocab_size=loop.target.vocab_size)
        return text

    def _constrained(self, constraint: Constraint | None, text: Sequence[int]) -> ConstrainedRow | None:
        if constraint is None:
            return None
        ends, vocab_size = self._loop.stops.eos_token_ids, self._loop.target.vocab_size
        return ConstrainedRow.started(constraint, text, vocab_size=vocab_size, ends=ends)

    def _limits(self, max_new_tokens: int | None, length: int) -> tuple[int, bool]:
        """New tokens behind a text of `length`, and whether the context limits them and not the wish."""
        wish, longest = self._max_new_tokens, self._loop.target.max_length
        if max_new_tokens is not None:
            wish = checked_count("max_new_tokens", max_new_tokens)
        # The last token takes no room in the context: nothing is read behind it.
        room = wish if longest is None else longest + 1 - length
        return min(wish, room), room < wish

    def _watch(self, row: int, text: Sequence[int]) -> None:
        """Ask the criteria about a row alone; those of a padded batch are asked about all rows together."""
        if self._criteria and self._batch is None:
            scores = self._loop.keep.scores
            batch = CriteriaBatch(self._criteria, [row], torch.tensor([text]), self._pad, keeps_scores=scores)
            self._loop.stops.batches.append(batch)


def checked_count(name: str, count: Any) -> int:
    """An integer >= 1, or `InvalidInput`."""
    if isinstance(count, bool) or not isinstance(count, Integral):
        raise InvalidInput(f"{name} is {count!r}; give an integer.")
    if count < 1:
        raise InvalidInput(f"{name} is {count}; ask for at least 1.")
    return int(count)
