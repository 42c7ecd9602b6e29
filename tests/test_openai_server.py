"""The example server, asked by OpenAI's own client and by clients that misbehave."""

from __future__ import annotations

import json
import runpy
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path

import pytest

from draftwood import SamplingParams, zoo
from draftwood.row_queue import RowQueue
from tests.test_examples import EXAMPLES

openai = pytest.importorskip("openai", reason="needs the openai client, which the extra `test` brings")

TEMPERATURE, NEW = 0.8, 10
PROMPTS = [f"Question: Tom has {n} apples. How many apples are there?\nAnswer:" for n in range(16)]


@pytest.fixture(scope="module")
def example():
    return runpy.run_path(str(EXAMPLES / "openai_server.py"))


@pytest.fixture(scope="module")
def decoder(example):
    return example["decoder_of"](str(zoo.path("llama-7m")), str(zoo.path("llama-draft")), 8)


@pytest.fixture
def server(example, decoder):
    one = example["Server"](
        decoder,
        zoo.tokenizer(),
        address=("127.0.0.1", 0),
        name="draftwood",
        temperature=TEMPERATURE,
        most=20,
        longest=100_000,
    )
    threading.Thread(target=one.serve_forever, args=(0.01,), daemon=True).start()
    yield one
    one.shutdown()
    one.server_close()


@pytest.fixture
def client(server):
    with openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.server_address[1]}/v1", api_key="none", max_retries=0, timeout=300
    ) as one:
        yield one


def post(server, path, content):
    """Status and answer of a request, which need not be JSON."""
    client = HTTPConnection("127.0.0.1", server.server_address[1], timeout=300)
    client.request("POST", path, content if isinstance(content, bytes) else json.dumps(content))
    answer = client.getresponse()
    return answer.status, json.loads(answer.read())


def alone(decoder, prompt, seed, new=NEW):
    """The text that the decoder writes without a server."""
    ids = zoo.tokenizer()(prompt)["input_ids"]
    sampling = SamplingParams(temperature=TEMPERATURE)
    row = decoder.generate([ids], max_new_tokens=new, seed=seed, sampling=sampling)[0, len(ids) :]
    return zoo.tokenizer().decode(row, skip_special_tokens=True)


def test_sixteen_streams_at_once_are_each_as_alone(server, client, monkeypatch):
    run, most = RowQueue.run, list[int]()

    def when_all_have_asked(queue):
        if not most:
            until(lambda: server.shared.unfinished == len(PROMPTS))
            most.append(server.shared.unfinished)
        return run(queue)

    monkeypatch.setattr(RowQueue, "run", when_all_have_asked)

    def ask(seed):
        pieces = []
        for chunk in client.completions.create(
            model="draftwood",
            prompt=PROMPTS[seed],
            max_tokens=NEW,
            seed=seed,
            stream=True,
            stream_options={"include_usage": True},
        ):
            pieces += [choice.text for choice in chunk.choices]
            usage = chunk.usage
        return "".join(pieces), len(pieces), usage

    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        found = list(threads.map(ask, range(len(PROMPTS))))
    server.shared.close()  # the decoder is free for what follows
    decoder = server.shared.queue.open.func.__self__
    assert most == [len(PROMPTS)]
    assert [text for text, *_ in found] == [alone(decoder, prompt, n) for n, prompt in enumerate(PROMPTS)]
    assert len({text for text, *_ in found}) > 8
    for _, pieces, usage in found:
        assert usage.completion_tokens <= NEW
        assert 2 <= pieces <= usage.completion_tokens + 2
        assert usage.draftwood["rounds"] >= 1


def test_a_chat_streamed_and_whole(server, client):
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Is the sky blue?"}]
    options = {"model": "draftwood", "messages": messages, "max_tokens": NEW, "seed": 3}
    whole = client.chat.completions.create(**options)
    streamed = "".join(
        chunk.choices[0].delta.content for chunk in client.chat.completions.create(**options, stream=True)
    )
    (choice,) = whole.choices
    assert choice.message.content == streamed
    assert choice.finish_reason == "length"
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + NEW
    assert [model.id for model in client.models.list()] == ["draftwood"]
    server.shared.close()
    decoder = server.shared.queue.open.func.__self__
    asked = "System: Be short.\nUser: Is the sky blue?\nAssistant:"
    assert streamed == alone(decoder, asked, 3)


@pytest.mark.parametrize(
    ("asked", "status", "sentence"),
    [
        ({"temperature": 0.1}, 400, "all texts share 0.8"),
        ({"top_p": 0.5}, 400, "does not serve 'top_p'=0.5"),
        ({"n": 2}, 400, "does not serve 'n'=2"),
        ({"stop": ["x"]}, 400, "does not serve 'stop'"),
        ({"tools": [{}]}, 400, "does not serve 'tools'"),
        ({"model": "gpt-4"}, 404, "There is no model 'gpt-4' here"),
        ({"max_tokens": 10**6}, 400, "max_tokens is 1000000; give an integer of at most 100000."),
        ({"max_tokens": "x"}, 400, "max_tokens is 'x'"),
        ({"max_tokens": -1}, 400, "max_tokens is -1"),
        ({"seed": -1}, 400, "seed is -1"),
        ({"prompt": ""}, 400, "prompt is not a text"),
        ({"prompt": 5}, 400, "prompt is not a text"),
        ({"prompt": "word " * 5000, "stream": False}, 400, "tokens; give 4096 at most."),
    ],
)
def test_what_is_not_served_is_refused_in_a_sentence(server, asked, status, sentence):
    found, answer = post(server, "/v1/completions", {"prompt": "Hi", **asked})
    assert found == status
    assert sentence in answer["error"]["message"]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"no json", 400),
        (b"[1]", 400),
        (b"[" * 10**5, 400),
        (b'{"messages": [1]}', 400),
        (b"x" * 1_100_000, 413),
    ],
)
def test_a_body_that_is_none(server, content, status):
    found, answer = post(server, "/v1/chat/completions", content)
    assert found == status
    assert answer["error"]["message"].endswith(".")
    assert post(server, "/v1/nothing", {})[0] == 404
    assert post(server, "/v1/completions", {"prompt": "Hi", "max_tokens": 1})[0] == 200


def until(condition):
    ends = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < ends
        time.sleep(0.01)


def test_a_client_that_goes_away_frees_its_row_and_one_too_many_is_told(server):
    sockets = []
    for _ in range(server.most):
        one = socket.create_connection(server.server_address)
        body = json.dumps({"prompt": "def f(x):", "stream": True, "max_tokens": 100_000}).encode()
        one.sendall(b"POST /v1/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
        sockets.append(one)
    until(lambda: server.shared.unfinished == server.most)
    status, answer = post(server, "/v1/completions", {"prompt": "Hi"})
    assert status == 429
    assert "20 texts are being written or wait already" in answer["error"]["message"]
    for one in sockets:
        one.close()
    until(lambda: server.shared.unfinished == 0)
    assert post(server, "/v1/completions", {"prompt": "Hi", "max_tokens": 2})[0] == 200


def test_the_page_says_what_the_example_refuses(example):
    page = (Path(EXAMPLES).parent / "serving.md").read_text(encoding="utf-8")
    for field in ("temperature", "top_p", "stop", "tools", "n"):
        assert f"`{field}`" in page
