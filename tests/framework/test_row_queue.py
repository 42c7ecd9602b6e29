"""Many prompts through a few rows do not change any text, also where a pass fails or a caller goes away."""

from __future__ import annotations

import os
import random
import select
import signal
import time
from collections.abc import Callable
from functools import partial
from threading import Thread

import pytest
import torch

from draftwood import InvalidInput, OutOfMemory, RowQueue, SamplingParams, SharedDecoder
from draftwood.base.errors import DraftwoodError
from draftwood.testing import ToyBackend
from tests.framework.decoding import TARGET, decoder

SAMPLED = SamplingParams(temperature=0.8)
NEW = 6


class Small(ToyBackend):
    """Holds `room` tokens of committed text and of the round, and raises `error` above; counts its faults."""

    room = 50
    error: Callable[[], Exception] = staticmethod(lambda: OutOfMemory("no more"))
    faults = 0

    def _check(self, more):
        if sum(self.lengths) + more > self.room:
            type(self).faults += 1
            raise self.error()

    def prefill(self, rows):
        self._check(sum(map(len, rows)))
        super().prefill(rows)

    def extend(self, tokens, parents, counts=None):
        self._check(tokens.numel())
        return super().extend(tokens, parents, counts)


def queue(count, seed=0):
    rng = random.Random(seed)
    return [[rng.randrange(5) for _ in range(rng.randint(1, 9))] for _ in range(count)]


def alone(prompt, seed):
    return (
        decoder()
        .generate([prompt], seed=seed, sampling=SAMPLED, max_new_tokens=NEW)[0, len(prompt) :]
        .tolist()
    )


def queue_of(target=None, rows=8, **options):
    one = decoder(target=target or ToyBackend(TARGET))
    return RowQueue(partial(one.session, sampling=SAMPLED, max_new_tokens=NEW, **options), rows)


def written(rows, prompts):
    with rows:
        texts = [rows.add(prompt, seed=number) for number, prompt in enumerate(prompts)]
        while rows.unfinished:
            rows.run()
        assert rows._session is None or rows._session.running == 0
    return texts


def test_each_text_is_that_of_its_prompt_and_seed_alone():
    prompts = queue(20)
    texts = written(queue_of(rows=7), prompts)
    for number, text in enumerate(texts):
        assert (text.finished, text.refused) == ("length", None)
        assert text.tokens == alone(prompts[number], number)
    counts = [text.statistics for text in texts]
    assert all(one["new_tokens"] == NEW and 1 <= one["rounds"] <= NEW for one in counts)
    assert all(one["tokens_per_round"] == pytest.approx(NEW / one["rounds"]) for one in counts)
    assert any(0 < one["acceptance_rate"] < 1 for one in counts)


@pytest.mark.parametrize(
    "error",
    [lambda: OutOfMemory("no more"), lambda: torch.OutOfMemoryError("CUDA out of memory."), MemoryError],
    ids=["pass", "device", "host"],
)
def test_rows_that_do_not_fit_together_wait_for_each_other(error, monkeypatch):
    monkeypatch.setattr(Small, "error", staticmethod(error))
    monkeypatch.setattr(Small, "faults", 0)
    prompts = queue(16)
    texts = written(queue_of(Small(TARGET)), prompts)
    assert Small.faults > 1
    assert [text.tokens for text in texts] == [alone(prompt, n) for n, prompt in enumerate(prompts)]


def test_a_row_that_does_not_fit_alone_is_refused_and_the_others_go_on(monkeypatch):
    monkeypatch.setattr(Small, "faults", 0)
    prompts = queue(20)
    prompts[6] = [1] * 58
    prompts[13] = [2] * 70
    texts = written(queue_of(Small(TARGET)), prompts)
    assert [text.number for text in texts if text.refused] == [6, 13]
    assert texts[6].refused == "no more"
    assert texts[6].tokens == []
    for number, text in enumerate(texts):
        if number not in (6, 13):
            assert text.tokens == alone(prompts[number], number)
    # Once the culprit is known all rows are used again, and few faults come of it.
    assert Small.faults < 20


def test_a_prompt_that_no_row_can_take_is_refused():
    prompts = [[1], [9], [], [2]]
    texts = written(queue_of(), prompts)
    assert [bool(text.refused) for text in texts] == [False, True, True, False]
    assert texts[1].refused.endswith(".")
    assert texts[3].tokens == alone([2], 3)


def test_rooms_come_back_after_a_fault(monkeypatch):
    monkeypatch.setattr(Small, "room", 10_000)
    target = Small(TARGET)
    rows, most = queue_of(target), []
    with rows:
        for number, prompt in enumerate(queue(40)):
            rows.add(prompt, seed=number)
        rows.run()
        target.room = 40
        while target.room == 40:
            rows.run()
            if target.faults:
                target.room = 10_000
        while rows.unfinished:
            rows.run()
            most.append(len(target.lengths))
    assert most[0] == 4
    assert max(most) == 8


def test_an_error_of_the_call_itself_is_raised():
    def refused():
        raise InvalidInput("No such call.")

    rows = RowQueue(refused, 2)
    rows.add([1], seed=0)
    with pytest.raises(InvalidInput, match="No such call"):
        rows.run()
    with pytest.raises(InvalidInput, match="rows is 0"):
        RowQueue(refused, 0)


def test_a_cancelled_text_gives_its_row_to_the_next():
    prompts, rows = queue(6), queue_of(rows=2)
    with rows:
        texts = [rows.add(prompt, seed=number) for number, prompt in enumerate(prompts)]
        rows.run()
        rows.cancel(texts[0])
        rows.cancel(texts[4])
        while rows.unfinished:
            rows.run()
        rows.cancel(texts[1])  # it has ended, so nothing happens
    assert texts[0].finished is None
    assert texts[4].tokens == []
    for number in (1, 2, 3, 5):
        assert texts[number].tokens == alone(prompts[number], number)


def test_a_long_queue_keeps_nothing_of_what_has_left():
    class Never:
        def __call__(self, ids, scores, **options):
            return torch.zeros(len(ids), dtype=torch.bool)

    rows = queue_of(rows=4, stopping_criteria=[Never()])
    with rows:
        for number, prompt in enumerate(queue(40)):
            rows.add(prompt, seed=number)
        while rows.unfinished:
            rows.run()
            session = rows._session
            assert len(session._texts) <= 4
            assert len(session._rows) <= 4
            assert len(session.statistics.history) <= 1


def test_threads_share_a_decoder():
    prompts, found = queue(16), {}
    with SharedDecoder(queue_of(rows=5)) as shared:

        def ask(number):
            found[number] = [token for piece in shared.add(prompts[number], seed=number) for token in piece]

        threads = [Thread(target=ask, args=(number,)) for number in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(300)
        assert shared.unfinished == 0
        assert shared.add([1], seed=3).wait().tokens == alone([1], 3)
    assert found == {number: alone(prompt, number) for number, prompt in enumerate(prompts)}


def test_a_fault_is_not_seen_by_those_who_read_along(monkeypatch):
    monkeypatch.setattr(Small, "faults", 0)
    prompts = queue(16)
    with SharedDecoder(queue_of(Small(TARGET))) as shared:
        texts = [shared.add(prompt, seed=number) for number, prompt in enumerate(prompts)]
        read = [[token for piece in text for token in piece] for text in texts]
    assert Small.faults > 1
    assert read == [alone(prompt, number) for number, prompt in enumerate(prompts)]


def test_a_shared_text_is_refused_cancelled_or_closed_with_a_sentence():
    with SharedDecoder(queue_of(rows=1), most=3) as shared:
        refused = shared.add([77], seed=0)
        with pytest.raises(InvalidInput):
            next(refused)
        with pytest.raises(InvalidInput):  # and says so as often as it is asked
            next(refused)
        assert refused.wait().refused
        given_up = shared.add([1], seed=0, max_new_tokens=10**6)
        next(given_up)
        waiting = [shared.add([1], seed=1, max_new_tokens=10**6) for _ in range(2)]
        with pytest.raises(InvalidInput, match="3 texts are being written or wait already"):
            shared.add([1], seed=0)
        given_up.cancel()
        with pytest.raises(InvalidInput, match="cancelled"):
            list(given_up)
        given_up.cancel()
        next(waiting[0])
    for text in waiting:
        with pytest.raises(InvalidInput, match="closed"):
            list(text)
    with pytest.raises(InvalidInput, match="closed"):
        shared.add([1], seed=0)


def test_a_writer_that_fails_tells_everyone():
    def broken():
        raise ZeroDivisionError("of the driver")

    shared = SharedDecoder(RowQueue(broken, 2))
    with pytest.raises(DraftwoodError, match="ZeroDivisionError: of the driver"):
        shared.add([1], seed=0).wait()
    shared.close()


def test_a_cancelled_row_whose_release_fails_takes_no_other_with_it():
    class Fails(ToyBackend):
        fails = False

        def release(self, rows=None):
            if rows is not None and self.fails:
                self.fails = False
                torch.empty(2**50)
            super().release(rows)

    target, prompts = Fails(TARGET), queue(3)
    with queue_of(target) as rows:
        texts = [rows.add(prompt, seed=number) for number, prompt in enumerate(prompts)]
        rows.run()
        target.fails = True
        rows.cancel(texts[1])
        assert not target.fails
        while rows.unfinished:
            rows.run()
        assert target.lengths == []
    assert [texts[n].tokens for n in (0, 2)] == [alone(prompts[n], n) for n in (0, 2)]


def test_a_session_whose_release_fails_can_only_be_closed():
    class Fails(ToyBackend):
        def release(self, rows=None):
            if rows is not None:
                torch.empty(2**50)
            super().release(rows)

    with decoder(target=Fails(TARGET)).session() as session:
        row = session.add([1, 2])
        session.run()
        with pytest.raises(RuntimeError, match="allocate memory"):
            session.cancel(row)
        with pytest.raises(InvalidInput, match=r"has failed \(RuntimeError\)"):
            session.run()


@pytest.mark.linux
def test_a_fork_of_a_process_with_an_open_decoder_is_told():
    with SharedDecoder(queue_of(rows=2)) as shared:
        texts = [shared.add([number], seed=number) for number in range(4)]
        calls = {
            "add": lambda: shared.add([1], seed=0),
            "next": lambda: next(texts[3]),
            "wait": texts[3].wait,
            "cancel": texts[3].cancel,
        }
        reading, writing = os.pipe()
        if not (child := os.fork()):
            # The child must not run what pytest has to do at its end.
            for name, call in calls.items():
                try:
                    call()
                except DraftwoodError as error:
                    os.write(writing, f"{name}: {error}\n".encode())
            shared.close()
            os.write(writing, b"closed\n")
            os._exit(0)
        os.close(writing)
        try:
            said = _read_within(reading, seconds=20)
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(reading)
        assert [text.wait().tokens for text in texts] == [alone([number], number) for number in range(4)]
    *sentences, last = said.splitlines()
    assert last == "closed"
    assert [sentence.split(": ", 1)[0] for sentence in sentences] == list(calls)
    for sentence in sentences:
        assert f"belongs to process {os.getpid()}, and a fork does not copy its thread" in sentence
        assert f"make another decoder in process {child}." in sentence


def _read_within(descriptor, *, seconds):
    """All that is written to a pipe until it is closed, or for so many seconds."""
    parts, end = [], time.monotonic() + seconds
    while select.select([descriptor], [], [], max(end - time.monotonic(), 0))[0]:
        if not (part := os.read(descriptor, 4096)):
            break
        parts.append(part)
    return b"".join(parts).decode()
