"""The example server's connections: clients that are slow, send ahead, leave, or speak no HTTP."""

from __future__ import annotations

import json
import os
import random
import socket
import struct
import threading
import time
from http.client import HTTPResponse

import pytest

from draftwood.decoding.row_queue import RowQueue
from tests.served import part, read_answer, request, served, until

SECONDS = 0.6
LIMITS = part("connection").Limits(head=4096, body=20_000, seconds=SECONDS, linger=2.0)
SHORT = {"prompt": "Hi", "max_tokens": 1}
LONG = {"prompt": "def f(x):", "max_tokens": 100_000}


@pytest.fixture
def short():
    """A server whose clients have little time and room."""
    with served(most=20, limits=LIMITS) as one:
        yield one


@pytest.fixture
def patient():
    """A server of 64 long texts."""
    with served(most=64, longest=100_000) as one:
        yield one


def answers(one, data, count):
    """The first answers to `data`, sent at once."""
    with one.connect() as client, client.makefile("rb") as stream:
        client.sendall(data)
        return [read_answer(stream) for _ in range(count)]


def test_a_refusal_leaves_a_kept_connection_in_step(short):
    body = b"POST /v1/completions HTTP/1.1\r\n" * 30  # looks like requests to whoever does not read it
    with short.connect() as client, client.makefile("rb") as stream:
        for path, content, method, status in [
            ("/v1/nothing", body, "POST", 404),
            ("/v1/models", body, "POST", 405),
            ("/v1/models", body, "DELETE", 405),
            ("/v1/completions", body, "GET", 405),
            ("/v1/completions", body, "POST", 400),
            ("/v1/completions", {"prompt": "Hi", "max_tokens": 0}, "POST", 400),
            ("/v1/completions", {"prompt": "Hi", "model": "x"}, "POST", 404),
            ("/v1/completions", SHORT, "POST", 200),
            ("/v1/models", None, "GET", 200),
        ]:
            client.sendall(request(path, content, method=method))
            found, headers, answer = read_answer(stream)
            assert found == status
            assert ("error" in json.loads(answer)) == (status != 200)
            assert ("allow" in headers) == (status == 405)


def test_requests_sent_ahead_are_answered_in_order(short):
    asked = [
        (request("/health", method="GET"), 200),
        (request("/v1/completions", SHORT), 200),
        (request("/v1/nothing", b"x" * 5000), 404),
        (request("/v1/completions", {**SHORT, "prompt": [1, 2, 3]}), 200),
        (request("/v1/chat/completions", b"{"), 400),
        (request("/health", method="HEAD"), 200),
        (request("/health", method="GET"), 200),
    ]
    with short.connect() as client, client.makefile("rb") as stream:
        client.sendall(b"".join(data for data, _ in asked))
        client.shutdown(socket.SHUT_WR)
        for data, status in asked:
            if data.startswith(b"HEAD"):
                assert stream.readline().split()[1] == b"200"
                while stream.readline().strip():
                    pass
            else:
                assert interim_skipped(stream)[0] == status
        assert read_answer(stream)[0] == 0


def interim_skipped(stream):
    """The next answer that is not only a sign of life."""
    while (found := read_answer(stream))[0] == 100:
        pass
    return found


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        (b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", 404),
        (request("/health", method="GET", headers="Upgrade: websocket\r\nConnection: upgrade\r\n"), 200),
        (request("http://here:80/health", method="GET"), 200),
        (request("http://here", method="GET"), 404),
        (request("/health?all=1", method="GET"), 404),
        (request("/health", {"a": 1}, method="GET"), 200),
    ],
)
def test_rare_requests_keep_a_connection_in_step(short, data, status):
    found = answers(short, data + request("/v1/completions", SHORT), 2)
    assert [one for one, *_ in found] == [status, 200]


def chunked(body, sizes):
    data = b""
    for size in sizes:
        piece, body = body[:size], body[size:]
        data += b"%x\r\n%s\r\n" % (len(piece), piece) if piece else b""
    return data + (b"%x\r\n%s\r\n" % (len(body), body) if body else b"") + b"0\r\n\r\n"


@pytest.mark.parametrize("seed", range(4))
def test_bodies_in_chunks_that_come_in_pieces(short, seed):
    rng = random.Random(seed)
    body = json.dumps(SHORT).encode()
    sizes = [rng.randrange(1, 8) for _ in body]
    head = request("/v1/completions", headers="Transfer-Encoding: chunked\r\n")
    data = (head + chunked(body, sizes)) * 2
    with short.connect() as client, client.makefile("rb") as stream:
        while data:
            size = rng.randrange(1, 40)
            client.sendall(data[:size])
            data = data[size:]
            time.sleep(0.001)
        assert [read_answer(stream)[0] for _ in range(2)] == [200, 200]


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200 + b"\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),  # no Host
        (b"GET / HTTP/1.1\r\nHost: a\r\nHost : b\r\n\r\n", 400),
        (b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (request("/v1/completions", headers="Content-Length: 5\r\nContent-Length: 6\r\n"), 400),
        (request("/v1/completions", headers="Content-Length: -5\r\n"), 400),
        (request("/v1/completions", headers="Content-Length: 5x\r\n"), 400),
        (request("/v1/completions", headers="Transfer-Encoding: gzip\r\n"), 501),
        (request("/v1/completions", headers="Transfer-Encoding: chunked\r\n") + b"zz\r\n", 400),
        (request("/v1/completions", headers="Content-Length: 99999999999\r\n"), 413),
        (
            request("/v1/completions", headers="Transfer-Encoding: chunked\r\n")
            + b"ffffff\r\n"
            + b"x" * 90_000,
            413,
        ),
        (request("/v1/completions", b"x" * 90_000), 413),
        (request("/v1/completions", SHORT, headers="Content-Encoding: gzip\r\n"), 415),
    ],
)
def test_what_cannot_be_read_is_refused_and_the_connection_closed(short, data, status):
    (found, headers, body), (closed, _, _) = answers(short, data, 2)
    assert (found, closed) == (status, 0)
    assert headers["connection"] == "close"
    assert headers["x-request-id"]
    assert set(json.loads(body)["error"]) == {"message", "type", "param", "code"}
    assert short.ask("/v1/completions", SHORT)[0] == 200


def test_a_body_cut_short_is_refused(short):
    with short.connect() as client, client.makefile("rb") as stream:
        client.sendall(request("/v1/completions", SHORT)[:-5])
        client.shutdown(socket.SHUT_WR)
        assert read_answer(stream)[0] == 400


def test_a_client_that_asks_whether_to_send_is_told(short):
    body = json.dumps(SHORT).encode()
    with short.connect() as client, client.makefile("rb") as stream:
        client.sendall(
            request("/v1/completions", headers=f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\n")
        )
        assert read_answer(stream)[0] == 100
        client.sendall(body)
        assert read_answer(stream)[0] == 200
        client.sendall(
            request("/v1/completions", headers="Content-Length: 90000\r\nExpect: 100-continue\r\n")
        )
        assert read_answer(stream)[0] == 413


@pytest.mark.parametrize("first", [b"", request("/v1/completions", headers="Content-Length: 400\r\n")])
def test_time_is_for_a_whole_request(short, first):
    started = time.monotonic()
    with short.connect() as client, client.makefile("rb") as stream:
        client.sendall(first)
        sender = threading.Thread(target=drip, args=(client,))
        sender.start()
        status, _, body = read_answer(stream)
        took = time.monotonic() - started
        sender.join()
    assert status == 408
    assert "not there after 0.6 seconds" in json.loads(body)["error"]["message"]
    assert took < 4 * SECONDS


def drip(client):
    """A byte ten times a second, for much longer than the server waits."""
    try:
        for _ in range(20):
            client.sendall(b"G")
            time.sleep(SECONDS / 10)
    except OSError:
        pass


def test_a_connection_without_requests_is_closed_in_silence(short):
    with short.connect() as client, client.makefile("rb") as stream:
        client.sendall(request("/health", method="GET"))
        assert read_answer(stream)[0] == 200
        assert stream.read() == b""


def test_a_client_that_reads_nothing_is_given_up(short):
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect(short.address)
        client.settimeout(30)
        with pytest.raises(ConnectionError):  # noqa: PT012
            ends = time.monotonic() + 20
            while time.monotonic() < ends:
                client.sendall(request("/openapi.json", method="GET"))


class Gate:
    """Holds the decoder's rounds back until it is opened."""

    def __init__(self, monkeypatch):
        self.opened = threading.Event()
        run = RowQueue.run

        def held(queue):
            assert self.opened.wait(300)
            return run(queue)

        monkeypatch.setattr(RowQueue, "run", held)


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_only_ends_its_own_direction_gets_its_answer(patient, monkeypatch, stream):
    gate = Gate(monkeypatch)
    with patient.connect() as client:
        client.sendall(request("/v1/completions", {**SHORT, "max_tokens": 40, "stream": stream}))
        client.shutdown(socket.SHUT_WR)
        until(lambda: patient.unfinished == 1)
        time.sleep(0.5)  # signs of life are sent meanwhile
        gate.opened.set()
        answer = HTTPResponse(client)
        answer.begin()
        body = answer.read()
    assert answer.status == 200
    assert (
        (body.count(b"data: ") > 3 and body.endswith(b"data: [DONE]\n\n"))
        if stream
        else json.loads(body)["id"]
    )


def test_an_old_client_that_ends_its_direction_has_left(patient):
    with patient.connect() as client:
        client.sendall(request("/v1/completions", LONG).replace(b"HTTP/1.1", b"HTTP/1.0"))
        until(lambda: patient.unfinished == 1)
        client.shutdown(socket.SHUT_WR)
        until(lambda: patient.unfinished == 0)
        assert client.recv(1000) == b""


def leave(client, how):
    if how == "reset":
        layout = "hh" if os.name == "nt" else "ii"
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack(layout, 1, 0))
    if how == "ahead":
        client.sendall(request("/health", method="GET"))
    client.close()


@pytest.mark.parametrize("how", ["close", "reset", "ahead"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_64_clients_that_leave_free_their_rows(patient, monkeypatch, stream, path, how):
    gate = Gate(monkeypatch)
    said = {"messages": [{"role": "user", "content": "Hi"}]} if "chat" in path else {"prompt": "Hi"}
    clients = [patient.connect() for _ in range(64)]
    for client in clients:
        client.sendall(request(path, {**said, "max_tokens": 100_000, "stream": stream}))
    until(lambda: patient.unfinished == 64)
    status, answer = patient.ask("/v1/completions", SHORT)
    assert (status, answer["error"]["code"]) == (429, "rate_limit_exceeded")
    gate.opened.set()
    for client in clients:
        leave(client, how)
    started = time.monotonic()
    until(lambda: patient.unfinished == 0)
    assert time.monotonic() - started < 20
    assert patient.ask("/v1/completions", SHORT)[0] == 200


def test_a_client_that_leaves_in_the_middle_of_a_stream(patient):
    client = patient.connect()
    client.sendall(request("/v1/completions", {**LONG, "stream": True, "n": 3}))
    assert client.recv(100).startswith(b"HTTP/1.1 200")
    client.close()
    until(lambda: patient.unfinished == 0)


def test_ids_are_carried_through(short):
    odd = {"X-Request-Id": "\xe9 ?", "X-Client-Request-Id": "x" * 900}
    _, headers, _ = short.exchange("/x", None, headers=odd)
    assert {name: headers[name.lower()] for name in odd} == odd
    for path, method, status in [
        ("/health", "GET", 200),
        ("/v1/completions", "POST", 400),
        ("/x", "GET", 404),
    ]:
        given = {"X-Request-Id": "a-1", "X-Client-Request-Id": "b-2"}
        found, headers, _ = short.exchange(path, None, method=method, headers=given)
        assert found == status
        assert (headers["x-request-id"], headers["x-client-request-id"]) == ("a-1", "b-2")
        _, headers, _ = short.exchange(path, None, method=method)
        assert len(headers["x-request-id"]) == 32
        assert "x-client-request-id" not in headers
