"""Faults of the machine and of the code that the example server calls, as its clients see them."""

from __future__ import annotations

import openai
import pytest

from draftwood import InvalidInput, OutOfMemory
from draftwood.decoding.row_queue import RowQueue
from tests.openai_asked import OPTIONS, client_of
from tests.served import part, served, until


@pytest.fixture
def server():
    with served(**OPTIONS) as one:
        yield one


@pytest.fixture
def client(server):
    with client_of(server) as one:
        yield one


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InvalidInput("This cannot be."), openai.BadRequestError),
        (OutOfMemory("There is no room."), openai.InternalServerError),
        (MemoryError(), openai.InternalServerError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), openai.InternalServerError),
        (ZeroDivisionError("division by zero"), openai.InternalServerError),
    ],
)
def test_faults_of_the_machine_are_no_faults_of_the_request(server, client, monkeypatch, error, status):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr("draftwood.decoding.session.Session.add", fail)
    for stream in (False, True):
        with pytest.raises(status) as refused:
            client.completions.create(model="draftwood", prompt="Hi", max_tokens=4, stream=stream)
        assert refused.value.type == (
            "invalid_request_error" if status is openai.BadRequestError else "server_error"
        )
        assert refused.value.status_code == {InvalidInput: 400, ZeroDivisionError: 500}.get(type(error), 503)
    monkeypatch.undo()
    assert client.completions.create(model="draftwood", prompt="Hi", max_tokens=4).choices


def test_a_fault_in_the_middle_of_a_stream_is_its_last_event(server, client, monkeypatch):
    run, rounds = RowQueue.run, []

    def fails_later(queue):
        rounds.append(queue)
        if len(rounds) > 3:
            server.server.shared.queue.open = None
            raise OSError(28, "No space left on device")
        return run(queue)

    monkeypatch.setattr(RowQueue, "run", fails_later)
    texts = []
    with pytest.raises(openai.APIError, match="No space left on device"):  # noqa: PT012
        for chunk in client.completions.create(model="draftwood", prompt="Hi", max_tokens=100, stream=True):
            texts += [choice.text for choice in chunk.choices]
    assert texts
    status, answer = server.ask("/health", None, method="GET")
    assert (status, answer["error"]["type"]) == (503, "server_error")
    assert server.ask("/v1/completions", {"prompt": "Hi"})[0] == 503


def test_a_machine_without_room_for_a_thread_says_so(server, client, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(part("writing"), "Thread", fail)
    with pytest.raises(openai.InternalServerError, match="can't start new thread") as refused:
        client.completions.create(model="draftwood", prompt="Hi", max_tokens=100, n=2)
    assert refused.value.status_code == 503
    monkeypatch.undo()
    until(lambda: server.unfinished == 0, 20)
    assert client.completions.create(model="draftwood", prompt="Hi", max_tokens=4).choices


def test_a_bug_is_told_and_the_server_goes_on(server, client, monkeypatch, capsys):
    monkeypatch.setattr(server.server, "tokenizer", None)
    with pytest.raises(openai.InternalServerError, match="its own output says how"):
        client.completions.create(model="draftwood", prompt="Hi")
    assert "TypeError" in capsys.readouterr().err
    monkeypatch.undo()
    assert client.completions.create(model="draftwood", prompt="Hi", max_tokens=4).choices
