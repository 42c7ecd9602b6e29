"""Requests that arrive, in an open loop, at a decoder that many users share: the one of a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Thread
from time import perf_counter, sleep
from typing import Any

import attrs

from draftwood import RowQueue, SharedDecoder
from draftwood.apps.bench.grid import Cell
from draftwood.apps.bench.patterns import Pattern
from draftwood.apps.bench.plan import BenchPlan, Contest
from draftwood.apps.bench.specs import OURS, Spec
from draftwood.apps.bench.writers import Speculative, Writer
from draftwood.decoding.shared_decoder import SharedText

_NO_QUEUE = "generate() of transformers has no queue that a request can join while others are written."


@attrs.frozen
class Served:
    """Requests that were answered; times in seconds after the start.

    Attributes:
        arrived: of every request, in order.
        first: when its first token came.
        ended: when its last one came.
        gaps: between the pieces in which a user gets a text, of all requests; a round's tokens are one piece.
        tokens: of all texts in order, equally many of each.
        rounds, drafted, accepted, prefill_tokens: sums over all texts.
    """

    arrived: list[float]
    first: list[float]
    ended: list[float]
    gaps: list[float]
    tokens: list[int]
    rounds: int
    drafted: int
    accepted: int
    prefill_tokens: int


@attrs.frozen(eq=False)
class Arrivals:
    """Runs contests with arrivals.

    Attributes:
        plan: of the run.
        prompts: gives the prompts of a contest.
        warmed: gives the writer of a contender, which has written a few tokens after some prompts.
    """

    plan: BenchPlan
    prompts: Callable[[Contest], list[list[int]]]
    warmed: Callable[[Spec, Contest, Sequence[Sequence[int]]], Writer]

    def capacity(self, cell: Cell) -> dict[str, Any]:
        """Returns the line of a `"capacity"` cell: every request is there at the start."""
        served = self._served(Spec(OURS), cell.contest, [0.0] * self.plan.requests, cell.seed(self.plan.seed))
        return {
            **attrs.asdict(cell.contest),
            **{"kind": cell.kind, "prompt": cell.prompt, "turn": cell.turn},
            "requests": self.plan.requests,
            "seconds": max(served.ended),
        }

    def measure(self, cell: Cell, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
        """Returns the line of an `"arrivals"` cell.

        Args:
            cell: a contender under one pattern and load.
            known: earlier lines by key, with the capacity where the contest has a load.
        """
        assert cell.spec is not None
        record = attrs.asdict(cell.contest) | {"kind": cell.kind, "prompt": cell.prompt, "turn": cell.turn}
        record |= {"contender": cell.spec.label, "repetition": cell.repetition}
        lengths = [len(prompt) for prompt in self.prompts(cell.contest)]
        record["prompt_tokens"] = sum(lengths) // len(lengths)
        if cell.spec.is_transformers:
            return {**record, "refused": _NO_QUEUE}
        pattern = Pattern.parse(cell.contest.arrivals)
        rate = pattern.rate
        if cell.contest.load:
            full = known[cell.capacity.key]
            rate = cell.contest.load * full["requests"] / full["seconds"]
        # One order of gaps for all contenders.
        arrivals = pattern.times(self.plan.requests, rate=rate, seed=self.plan.seed + cell.repetition)
        served = self._served(cell.spec, cell.contest, arrivals, cell.seed(self.plan.seed))
        return {**record, "rate": rate, **attrs.asdict(served)}

    def _served(self, spec: Spec, contest: Contest, arrivals: Sequence[float], seed: int) -> Served:
        prompts = self.prompts(contest)
        together = [prompts[number % len(prompts)] for number in range(contest.rows)]
        writer = self.warmed(spec, contest, together)
        assert isinstance(writer, Speculative)
        opened = partial(
            writer.decoder.session,
            max_new_tokens=contest.new_tokens,
            sampling=writer.sampling,
            draft_sampling=writer.draft_sampling,
            eos_token_id=(),
        )
        users: list[_User] = []
        with SharedDecoder(RowQueue(opened, contest.rows)) as decoder:
            started = perf_counter()
            for number, arrival in enumerate(arrivals):
                sleep(max(started + arrival - perf_counter(), 0))
                text = decoder.add(prompts[number % len(prompts)], seed=seed + number)
                users.append(_User(text, started))
            for user in users:
                user.wait()
        return _served(arrivals, users)


@attrs.define(eq=False)
class _User:
    """Somebody who reads a text as it comes, and notes when.

    Attributes:
        text: what they asked for.
        started: when the run began, by `perf_counter`.
        times: when each piece of the text came, in seconds after the start.
    """

    text: SharedText
    started: float
    times: list[float] = attrs.field(factory=list)
    _error: BaseException | None = None
    _thread: Thread = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for _ in self.text:
                self.times.append(perf_counter() - self.started)
        except BaseException as error:  # raised where the user is waited for
            self._error = error

    def wait(self) -> None:
        """Returns when the text is there; raises what kept it from coming."""
        self._thread.join()
        if self._error is not None:
            raise self._error


def _served(arrivals: Sequence[float], users: Sequence[_User]) -> Served:
    texts = [user.text.text for user in users]
    counts = [text.counts for text in texts if text is not None]
    rounds, drafted, accepted, prefill_tokens = (
        int(sum(of[name] for of in counts)) for name in ("rounds", "drafted", "accepted", "prefill_tokens")
    )
    return Served(
        arrived=list(arrivals),
        first=[user.times[0] for user in users],
        ended=[user.times[-1] for user in users],
        gaps=[
            later - earlier
            for user in users
            for earlier, later in zip(user.times, user.times[1:], strict=False)
        ],
        tokens=[token for text in texts if text is not None for token in text.tokens],
        rounds=rounds,
        drafted=drafted,
        accepted=accepted,
        prefill_tokens=prefill_tokens,
    )
