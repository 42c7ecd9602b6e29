"""The example server, asked by OpenAI's own client; its texts equal the decoder's texts without a server."""

from __future__ import annotations

import asyncio
import copy
import json
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import attrs
import openai
import pytest
import torch

from draftwood import zoo
from draftwood.decoding.row_queue import RowQueue
from draftwood.laws.randomness import row_seeds
from tests.openai_asked import MESSAGES, NEW, OPTIONS, TEMPERATURE, alone, client_of, encoded
from tests.served import EXAMPLES, served, until

PROMPTS = [f"Question: Tom has {n} apples. How many apples are there?\nAnswer:" for n in range(16)]


@pytest.fixture
def server():
    with served(**OPTIONS) as one:
        yield one


@pytest.fixture
def client(server):
    with client_of(server) as one:
        yield one


def streamed(chunks):
    """By choice: the joined text, why it ended, and the logprobs of all events; and the usage."""
    texts, finishes, logprobs = dict[int, str](), dict[int, str](), dict[int, list[Any]]()
    usage = None
    for chunk in chunks:
        assert usage is None, "an event follows the usage"
        usage = chunk.usage
        for choice in chunk.choices:
            said = choice.text if hasattr(choice, "text") else choice.delta.content or ""
            texts[choice.index] = texts.get(choice.index, "") + said
            assert choice.index not in finishes, "an event follows the end of its choice"
            if choice.finish_reason is not None:
                finishes[choice.index] = choice.finish_reason
            if choice.logprobs is not None:
                logprobs.setdefault(choice.index, []).append(choice.logprobs)
    return texts, finishes, logprobs, usage


def test_sixteen_streams_at_once_are_each_as_alone(server, client, monkeypatch):
    run, most = RowQueue.run, list[int]()

    def when_all_have_asked(queue):
        if not most:
            until(lambda: server.unfinished == len(PROMPTS))
            most.append(server.unfinished)
        return run(queue)

    monkeypatch.setattr(RowQueue, "run", when_all_have_asked)

    def ask(seed):
        return streamed(
            client.completions.create(
                model="draftwood",
                prompt=PROMPTS[seed],
                max_tokens=NEW,
                seed=seed,
                stream=True,
                stream_options={"include_usage": True},
            )
        )

    with ThreadPoolExecutor(len(PROMPTS)) as threads:
        found = list(threads.map(ask, range(len(PROMPTS))))
    assert most == [len(PROMPTS)]
    texts = [texts[0] for texts, *_ in found]
    assert texts == [alone(server, prompt, n) for n, prompt in enumerate(PROMPTS)]
    assert len(set(texts)) > 8
    for _, finishes, _, usage in found:
        assert finishes[0] in ("stop", "length")
        assert usage.completion_tokens <= NEW
        assert usage.draftwood["rounds"] >= 1


def test_a_chat_streamed_and_whole(server, client):
    options = {"model": "draftwood", "messages": MESSAGES, "max_completion_tokens": NEW, "seed": 3}
    whole = client.chat.completions.create(**options)
    chunks = list(client.chat.completions.create(**options, stream=True))
    (choice,) = whole.choices
    assert choice.message.role == chunks[0].choices[0].delta.role == "assistant"
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    texts, finishes, _, usage = streamed(chunks)
    assert (choice.message.content, choice.finish_reason) == (texts[0], finishes[0])
    assert usage is None
    assert not any("usage" in chunk.model_fields_set for chunk in chunks)
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + NEW
    assert texts[0] == alone(server, "System: Be short.\nUser: Is the sky blue?\nAssistant:", 3)


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.3},
    {"top_p": 0.5},
    {"top_k": 3},
    {"min_p": 0.2},
    {"temperature": 1.5, "top_p": 0.9, "top_k": 50},
    {"top_k": -1, "top_p": 1, "min_p": 0},
]


def test_texts_of_different_settings_at_once_are_each_as_alone(server, client):
    def ask(number):
        given = dict(SETTINGS[number])
        own = {name: given.pop(name) for name in ("top_k", "min_p") if name in given}
        answer = client.completions.create(
            model="draftwood", prompt=PROMPTS[0], max_tokens=NEW, seed=7, extra_body=own, **given
        )
        return answer.choices[0].text

    with ThreadPoolExecutor(len(SETTINGS)) as threads:
        found = list(threads.map(ask, range(len(SETTINGS))))
    used = [
        {name: value for name, value in one.items() if value not in (-1, 0) or name == "temperature"}
        for one in SETTINGS
    ]
    assert found == [alone(server, PROMPTS[0], 7, **one) for one in used]
    assert len(set(found)) > 4


def test_several_texts_have_seeds_of_their_own(server, client):
    prompts = PROMPTS[:3]
    forms = [prompts, [encoded(prompt) for prompt in prompts]]
    found = []
    for form in forms:
        options = {"model": "draftwood", "prompt": form, "n": 2, "max_tokens": NEW, "seed": 11}
        whole = client.completions.create(**options)
        texts, finishes, _, usage = streamed(
            client.completions.create(**options, stream=True, stream_options={"include_usage": True})
        )
        assert [choice.index for choice in whole.choices] == list(range(6))
        assert [choice.text for choice in whole.choices] == [texts[n] for n in range(6)]
        assert [choice.finish_reason for choice in whole.choices] == [finishes[n] for n in range(6)]
        assert usage.prompt_tokens == whole.usage.prompt_tokens == sum(len(encoded(one)) for one in prompts)
        assert usage.completion_tokens == whole.usage.completion_tokens <= 6 * NEW
        found.append([choice.text for choice in whole.choices])
    single = client.completions.create(model="draftwood", prompt=encoded(prompts[0]), max_tokens=NEW, seed=11)
    assert single.choices[0].text == found[0][0]
    unseeded = [
        client.completions.create(model="draftwood", prompt=prompts[0], max_tokens=NEW).choices[0].text
        for _ in "123"
    ]
    assert len(set(unseeded)) > 1
    assert found[0] == found[1]
    seeds = row_seeds(11, 6)
    assert found[0] == [alone(server, prompts[n // 2], seeds[n]) for n in range(6)]


@pytest.mark.parametrize("chat", [False, True])
def test_stop_strings_end_texts_and_are_no_part_of_them(server, client, chat):
    create = client.chat.completions.create if chat else client.completions.create
    asked = {"messages": MESSAGES} if chat else {"prompt": PROMPTS[0]}
    # The words of the prompt are not searched.
    options = {"model": "draftwood", "seed": 5, "max_tokens": 40, "logprobs": True if chat else 1, **asked}
    whole = text_of(create(**options).choices[0])
    for start, length in [(30, 3), (20, 12), (len(whole) - 2, 2), (0, 2)][:: 2 if chat else 1]:
        stop = whole[start : start + length]
        cut = whole[: whole.index(stop)]
        others = ["not there at all", f"{whole[start - 3 : start + length]}???"]
        for given in (stop, [*others, stop])[start % 2 :]:
            answer = create(**options, stop=given)
            choice = answer.choices[0]
            assert (text_of(choice), choice.finish_reason) == (cut, "stop")
            texts, finishes, logprobs, usage = streamed(
                create(**options, stop=given, stream=True, stream_options={"include_usage": True})
            )
            assert (texts[0], finishes[0]) == (cut, "stop")
            assert usage.completion_tokens == answer.usage.completion_tokens
            names = token_names([choice.logprobs], chat)
            assert names == token_names(logprobs.get(0, []), chat)
            assert "".join(names).startswith(cut)
            assert len("".join(names[:-1])) < max(len(cut), 1)
    absent = create(**options, stop=["not there at all"])
    assert text_of(absent.choices[0]) == whole
    assert absent.choices[0].finish_reason == "length"


def text_of(choice):
    return choice.message.content if hasattr(choice, "message") else choice.text


def token_names(logprobs, chat):
    if chat:
        return [token.token for one in logprobs for token in one.content]
    return [token for one in logprobs for token in one.tokens]


def as_rounded(logprobs):
    """Compare with these, of the same text: passes with other rows beside it round otherwise."""
    return pytest.approx(logprobs, abs=1e-5)


def test_logprobs_are_the_targets_own(server, client):
    options = {"model": "draftwood", "prompt": PROMPTS[:2], "max_tokens": NEW, "seed": 2, "logprobs": 3}
    answer = client.completions.create(**options)
    _, _, pieces, _ = streamed(client.completions.create(**options, stream=True))
    model, tokenizer = zoo.load("llama-7m"), zoo.tokenizer()
    for choice in answer.choices:
        prompt, found = PROMPTS[choice.index], choice.logprobs
        assert "".join(found.tokens) == choice.text
        for token, offset in zip(found.tokens, found.text_offset, strict=True):
            assert (prompt + choice.text)[offset:].startswith(token)
        ids = encoded(prompt)
        written = tokenizer.convert_tokens_to_ids(tokenizer.tokenize(choice.text))
        assert tokenizer.decode(written) == choice.text
        for step, (token, value, likeliest) in enumerate(
            zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True)
        ):
            with torch.no_grad():
                law = model(torch.tensor([ids])).logits[0, -1].log_softmax(-1)
            (this,) = [
                one
                for one in range(len(law))
                if tokenizer.decode([one]) == token and abs(law[one] - value) < 1e-3
            ]
            top = law.topk(3)
            wanted = {tokenizer.decode([one]): law[one].item() for one in [*top.indices.tolist(), this]}
            assert likeliest == pytest.approx(wanted, abs=1e-3), step
            ids = [*ids, this]
        sent = {
            field: [one for piece in pieces[choice.index] for one in getattr(piece, field)]
            for field in ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        }
        assert found.tokens == sent["tokens"]
        assert found.text_offset == sent["text_offset"]
        assert found.token_logprobs == as_rounded(sent["token_logprobs"])
        for these, those in zip(found.top_logprobs, sent["top_logprobs"], strict=True):
            assert these == as_rounded(those)
    none = client.completions.create(**{**options, "logprobs": 0}).choices[0].logprobs
    assert none.top_logprobs is None
    assert none.token_logprobs == as_rounded(answer.choices[0].logprobs.token_logprobs)
    assert client.completions.create(**{**options, "logprobs": None}).choices[0].logprobs is None


def test_logprobs_of_a_chat_have_the_shape_of_a_chat(client):
    options = {"model": "draftwood", "messages": MESSAGES, "max_tokens": NEW, "seed": 2, "logprobs": True}
    (choice,) = client.chat.completions.create(**options, top_logprobs=4).choices
    _, _, pieces, _ = streamed(client.chat.completions.create(**options, top_logprobs=4, stream=True))
    tokens = choice.logprobs.content
    sent = [token for piece in pieces[0] for token in piece.content]
    assert [token.token for token in tokens] == [token.token for token in sent]
    assert [token.logprob for token in tokens] == as_rounded([token.logprob for token in sent])
    assert "".join(token.token for token in tokens) == choice.message.content
    for token in tokens:
        assert bytes(token.bytes).decode() == token.token
        assert len(token.top_logprobs) == 4
        values = [one.logprob for one in token.top_logprobs]
        assert values == sorted(values, reverse=True)
        assert token.logprob <= values[0]
    (plain,) = client.chat.completions.create(**options).choices
    assert [token.top_logprobs for token in plain.logprobs.content] == [[]] * len(tokens)


def test_penalties_are_openais(client):
    model, tokenizer = zoo.load("llama-7m"), zoo.tokenizer()
    ids = encoded("The cat and the dog and the cat")
    found = {}
    for presence, frequency in [(0, 0), (1.5, 0), (0, 0.7), (-1, 1.2)]:
        text = list(ids)
        for _ in range(24):
            with torch.no_grad():
                scores = model(torch.tensor([text])).logits[0, -1].double()
            for token in set(text[len(ids) :]):
                scores[token] -= presence + frequency * text[len(ids) :].count(token)
            text.append(int(scores.argmax()))
        answer = client.completions.create(
            model="draftwood",
            prompt=ids,
            temperature=0,
            max_tokens=24,
            presence_penalty=presence,
            frequency_penalty=frequency,
        )
        found[presence, frequency] = answer.choices[0].text
        assert answer.choices[0].text == tokenizer.decode(text[len(ids) :], skip_special_tokens=True)
    assert len(set(found.values())) == 4


def test_models_are_listed_and_others_unknown(server, client):
    assert [model.id for model in client.models.list()] == ["draftwood"]
    assert client.models.retrieve("draftwood").owned_by == "draftwood"
    with pytest.raises(openai.NotFoundError, match='no model "a/b" here; it is "draftwood"') as refused:
        client.models.retrieve("a/b")
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError, match='no model "gpt-4" here') as refused:
        client.completions.create(model="gpt-4", prompt="Hi")
    assert (refused.value.code, refused.value.param) == ("model_not_found", "model")
    assert server.ask("/health", None, method="GET") == (200, {"status": "ok"})


def test_requests_that_a_program_of_coroutines_gives_up_free_their_rows(server):
    async def give_up():
        async with openai.AsyncOpenAI(
            base_url=f"{server.base_url}/v1", api_key="none", max_retries=0
        ) as client:
            asked: dict[str, Any] = {"model": "draftwood", "prompt": "def f(x):", "max_tokens": 200, "n": 2}
            stream = await client.completions.create(**asked, stream=True)
            await anext(aiter(stream))
            await stream.close()
            tasks = [asyncio.create_task(client.completions.create(**asked)) for _ in range(8)]
            await asyncio.sleep(0.2)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert all(task.cancelled() for task in tasks)

    asyncio.run(give_up())
    until(lambda: server.unfinished == 0, 20)


def test_parts_of_a_message_are_one_text(server, client):
    parts = [{"type": "text", "text": "Is the sky"}, {"type": "text", "text": " blue?"}]
    given = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": parts, "name": "Anna"},
        {"role": "assistant", "content": "Yes."},
    ]
    answer = client.chat.completions.create(model="draftwood", messages=given, max_tokens=NEW, seed=3)
    text = "Developer: Be short.\nUser (Anna): Is the sky blue?\nAssistant: Yes.\nAssistant:"
    assert answer.usage.prompt_tokens == len(encoded(text))
    assert answer.choices[0].message.content == alone(server, text, 3)


TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}"
    "{{ raise_exception('A system message comes first') }}{% endif %}"
    "{% if m.role != 'user' or loop.length < 4 %}<{{ m.role }}>{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


def test_the_models_own_template_is_used():
    tokenizer = copy.deepcopy(zoo.tokenizer())
    tokenizer.chat_template = TEMPLATE
    with served(tokenizer=tokenizer, temperature=TEMPERATURE) as server, client_of(server) as client:

        def ask(*turns, **more):
            given = [{"role": role, "content": content, **more} for role, content in turns]
            return client.chat.completions.create(model="draftwood", messages=given, max_tokens=NEW, seed=3)

        answer = ask(("developer", "Be short."), ("user", "Hi"))
        for turns, sentence in [
            (
                [("user", "Hi"), ("system", "x")],
                "does not take these messages: A system message comes first.",
            ),
            (
                [("system", "x"), ("user", "Hi"), ("user", "a"), ("user", "b")],
                "leaves out what the user says",
            ),
        ]:
            with pytest.raises(openai.BadRequestError, match=sentence):
                ask(*turns)
        with pytest.raises(openai.BadRequestError, match="has no place for names"):
            ask(("user", "Hi"), name="Anna")
        text = "<system>Be short.<user>Hi<assistant>"
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        assert answer.choices[0].message.content == alone(server, ids, 3)


@attrs.define
class OddTokenizer:
    """Decodes to halves of surrogate pairs, as a slow tokenizer of somebody's own may."""

    chat_template = None

    def __call__(self, text):
        return {"input_ids": encoded(text)}

    def decode(self, tokens, **options):
        return "\ud800" * len(tokens)


def test_an_answer_with_half_a_surrogate_pair_is_sent():
    with served(tokenizer=OddTokenizer(), temperature=TEMPERATURE) as server:
        status, answer = server.ask("/v1/completions", {"prompt": "Hi", "max_tokens": 3, "logprobs": 2})
        assert status == 200
        assert answer["choices"][0]["text"] == "\ud800" * 3
        given = {"messages": MESSAGES, "max_tokens": 3, "logprobs": True, "top_logprobs": 2, "stream": True}
        status, _, body = server.exchange("/v1/chat/completions", given)
        events = [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]
        assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == "\ud800" * 3


@pytest.mark.posix
@pytest.mark.thorough
def test_the_program_answers_at_its_port_until_ctrl_c():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "openai_server.py", "--port", str(port)]
    with subprocess.Popen(command, cwd=EXAMPLES, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == f"http://127.0.0.1:{port}/v1, model draftwood; Ctrl-C ends it.\n"
        with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none") as client:
            answer = client.completions.create(model="draftwood", prompt="Once upon a time", max_tokens=4)
        program.send_signal(signal.SIGINT)
        assert program.wait(60) == 0
    assert answer.choices[0].finish_reason == "length"
