"""`--data` with OpenAI's batch files: requests with different settings, answers in OpenAI's shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion

from draftwood import zoo
from draftwood.apps.files.journal import Journal
from draftwood.apps.generate import text_file
from draftwood.apps.generate.prompt_file import read_prompts
from draftwood.apps.models.asked import Chat

pytestmark = pytest.mark.usefixtures("few_reads")

ASKED = "Question: What is 2 plus 3?\nAnswer:"
DEFAULT = ("--max-new-tokens", 6, "-o", "budget=4", "--seed", 3)


def request(name: str, *, chat: bool = False, **body: Any) -> dict[str, Any]:
    own = {"messages": [{"role": "user", "content": "What is 2 plus 3?"}]} if chat else {"prompt": ASKED}
    return {
        "custom_id": name,
        "method": "POST",
        "url": "/v1/chat/completions" if chat else "/v1/completions",
        "body": {"model": "llama-7m", **own, **body},
    }


def write(file: Path, *rows: dict[str, Any]) -> Path:
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def answers(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture
def asked(draftwood, tmp_path):
    """Write answers to some requests."""

    def ask(*rows: dict[str, Any], code: int = 0, words: tuple[Any, ...] = DEFAULT) -> list[dict[str, Any]]:
        number = len(list(tmp_path.iterdir()))
        out = tmp_path / f"out{number}.jsonl"
        prompts = write(tmp_path / f"asked{number}.jsonl", *rows)
        result = draftwood("generate", "--data", prompts, "--out", out, *words)
        assert result.exit_code == code, result.output
        found = answers(out)
        assert [one["custom_id"] for one in found] == [row["custom_id"] for row in rows]
        assert [one.keys() for one in found] == [{"id", "custom_id", "response", "error"}] * len(rows)
        assert len({one["id"] for one in found}) == len(rows)
        return [one["response"] for one in found]

    return ask


def texts(draftwood, *words: Any) -> list[str]:
    """Returns the texts that the command writes for one prompt with these options."""
    result = draftwood("generate", "--json", *words)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["text"] for line in result.stdout.splitlines()]


def test_answers_have_the_shape_of_openai(asked):
    one, chat = asked(request("a"), request("b", chat=True, max_completion_tokens=2))
    assert (one["status_code"], chat["status_code"]) == (200, 200)
    Completion.model_validate(one["body"], strict=True)
    ChatCompletion.model_validate(chat["body"], strict=True)
    body = one["body"]
    assert body.keys() == {"id", "object", "created", "model", "choices", "usage"}
    assert body["object"] == "text_completion"
    assert body["model"] == "llama-7m"
    (choice,) = body["choices"]
    assert choice.keys() == {"index", "text", "logprobs", "finish_reason"}
    prompt = len(zoo.tokenizer()(ASKED)["input_ids"])
    assert body["usage"] == {"prompt_tokens": prompt, "completion_tokens": 6, "total_tokens": prompt + 6}
    body = chat["body"]
    assert body["object"] == "chat.completion"
    (choice,) = body["choices"]
    assert choice["message"].keys() == {"role", "content", "refusal"}
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("draft", [(), ("--draft-temperature", 1.4)])
def test_each_request_is_written_as_the_command_writes_it_with_its_settings(asked, draftwood, draft):
    """Rows of different settings share rounds, and each is the text of a command with those settings."""
    settings: list[tuple[dict[str, Any], tuple[Any, ...]]] = [
        ({"temperature": 0}, ("--temperature", 0)),
        ({"temperature": 0.7, "seed": 11}, ("--temperature", 0.7, "--seed", 11)),
        ({"temperature": 1, "top_p": 0.8, "seed": 12}, ("--temperature", 1, "--top-p", 0.8, "--seed", 12)),
        ({"temperature": 1.2, "top_k": 5, "seed": 2}, ("--temperature", 1.2, "--top-k", 5, "--seed", 2)),
        ({"temperature": 0.5, "min_p": 0.1, "seed": 4}, ("--temperature", 0.5, "--min-p", 0.1, "--seed", 4)),
        ({"max_tokens": 3}, ("--max-new-tokens", 3)),
    ]
    usual = (*DEFAULT, *draft)
    written = asked(*(request(str(n), **body) for n, (body, _) in enumerate(settings)), words=usual)
    for response, (_, words) in zip(written, settings, strict=True):
        (expected,) = texts(draftwood, "--prompt", ASKED, *usual, *words)
        assert response["body"]["choices"][0]["text"] == expected


def test_a_stop_string_ends_a_text_and_is_no_part_of_it(asked, draftwood):
    (whole,) = texts(draftwood, "--prompt", ASKED, *DEFAULT)
    stop = whole[3:5]
    kept, cut, several = asked(
        request("a"), request("b", stop=stop), request("c", stop=["no such text", stop, "neither"])
    )
    assert kept["body"]["choices"][0] == {
        "index": 0,
        "text": whole,
        "logprobs": None,
        "finish_reason": "length",
    }
    for one in (cut, several):
        assert one["body"]["choices"][0]["text"] == whole.split(stop)[0]
        assert one["body"]["choices"][0]["finish_reason"] == "stop"
        assert one["body"]["usage"]["completion_tokens"] < 6


def test_prompts_of_every_form(asked):
    ids = zoo.tokenizer()(ASKED)["input_ids"]
    one, tokens, several, lists = asked(
        request("a"), request("b", prompt=ids), request("c", prompt=[ASKED, "Hi", ASKED]),
        request("d", prompt=[ids, ids[:3]], n=2),
    )  # fmt: skip
    text = one["body"]["choices"][0]["text"]
    assert tokens["body"]["choices"][0]["text"] == text
    assert [choice["text"] == text for choice in several["body"]["choices"]] == [True, False, True]
    assert [choice["index"] for choice in several["body"]["choices"]] == [0, 1, 2]
    assert [choice["text"] == text for choice in lists["body"]["choices"]] == [True, True, False, False]
    assert lists["body"]["usage"]["prompt_tokens"] == len(ids) + 3
    assert several["body"]["usage"]["completion_tokens"] == 18


def test_choices_are_drawn_apart_and_a_seed_repeats_them(asked):
    body: dict[str, Any] = {"n": 4, "temperature": 1.5, "max_tokens": 6}
    first, again, seeded, same = asked(
        request("a", **body), request("b", **body), request("c", seed=5, **body), request("d", seed=5, **body)
    )
    found = [[choice["text"] for choice in one["body"]["choices"]] for one in (first, again, seeded, same)]
    assert len(set(found[0])) > 1
    assert found[0] != found[1]
    assert found[2] == found[3]


def test_log_probabilities(asked):
    plain, one, chat = asked(
        request("a", logprobs=0), request("b", logprobs=2, temperature=0.5, seed=1),
        request("c", chat=True, logprobs=True, top_logprobs=3),
    )  # fmt: skip
    for response in (plain, one):
        Completion.model_validate(response["body"], strict=True)
    ChatCompletion.model_validate(chat["body"], strict=True)
    for response, top in ((plain, 0), (one, 2)):
        choice = response["body"]["choices"][0]
        told = choice["logprobs"]
        assert "".join(told["tokens"]) == choice["text"]
        for begins, token in zip(told["text_offset"], told["tokens"], strict=True):
            assert choice["text"][begins:].startswith(token)
        assert len(told["token_logprobs"]) == 6
        assert all(logprob <= 0 for logprob in told["token_logprobs"])
        assert [len(likely) for likely in told["top_logprobs"]] == [top] * 6
    content = chat["body"]["choices"][0]["logprobs"]["content"]
    assert "".join(token["token"] for token in content) == chat["body"]["choices"][0]["message"]["content"]
    for token in content:
        assert len(token["top_logprobs"]) == 3
        assert token["top_logprobs"][0]["logprob"] == pytest.approx(token["logprob"])  # it is greedy
        assert token["bytes"] == list(token["token"].encode())


def test_a_chat_is_shaped_by_the_template(asked, draftwood, monkeypatch):
    parts = [{"type": "text", "text": "What is "}, {"type": "text", "text": "2 plus 3?"}]
    plain, of_parts, turns = asked(
        request("a", chat=True),
        request("b", chat=True, messages=[{"role": "user", "content": parts}]),
        request("c", prompt="User: What is 2 plus 3?\nAssistant:"),
    )
    text = turns["body"]["choices"][0]["text"]
    assert plain["body"]["choices"][0]["message"]["content"] == text
    assert of_parts["body"]["choices"][0]["message"]["content"] == text
    tokenizer = zoo.tokenizer()
    tokenizer.chat_template = (
        "{% for message in messages %}{{ message.role }}> {{ message.content }}\n"
        "{% if message.content == 'no' %}{{ raise_exception('I will not') }}{% endif %}{% endfor %}bot>"
    )
    monkeypatch.setattr(zoo, "tokenizer", lambda: tokenizer)
    templated, raw, fails = asked(
        request("a", chat=True),
        request("b", prompt="user> What is 2 plus 3?\nbot>"),
        request("c", chat=True, messages=[{"role": "user", "content": "no"}]),
        code=1,
    )
    assert templated["body"]["choices"][0]["message"]["content"] == raw["body"]["choices"][0]["text"]
    assert fails["status_code"] == 400
    assert "I will not" in fails["body"]["error"]["message"]


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"stream": True}, "stream is true, which is not supported"),
    ({"stream": "false"}, 'stream is "false", which is not supported'),
    ({"echo": True}, "echo is true, which is not supported"),
    ({"best_of": 3}, "best_of is 3, which is not supported"),
    ({"suffix": "end"}, 'suffix is "end", which is not supported'),
    ({"logit_bias": {"5": 1}}, 'logit_bias is {"5": 1}, which is not supported'),
    ({"presence_penalty": 0.5}, "presence_penalty is 0.5, which is not supported"),
    ({"frequenzy_penalty": 0}, "field 'frequenzy_penalty'; did you mean 'frequency_penalty'?"),
    ({"messages": []}, "field 'messages'"),
    ({"max_completion_tokens": 3}, "field 'max_completion_tokens'"),
    ({"max_tokens": 0}, "max_tokens is 0; give an integer of 1 or more"),
    ({"max_tokens": False}, "max_tokens is false; give an integer"),
    ({"max_tokens": "3"}, 'max_tokens is "3"; give an integer'),
    ({"temperature": 2.5}, "temperature is 2.5; give a number from 0 to 2"),
    ({"temperature": "0"}, 'temperature is "0"; give a number'),
    ({"top_p": 0}, "top_p is 0; give a number above 0"),
    ({"n": 0}, "n is 0; give an integer from 1"),
    ({"n": 1000}, "n is 1000; give an integer from 1"),
    ({"seed": -1}, "seed is -1; give an integer of at least 0"),
    ({"stop": ["a"] * 5}, "list of up to 4"),
    ({"stop": [""]}, "texts of at least one character"),
    ({"stop": 5}, "stop is 5; give a text"),
    ({"logprobs": True}, "logprobs is true; give an integer from 0"),
    ({"logprobs": 99}, "logprobs is 99; give an integer from 0"),
    ({"prompt": ""}, 'prompt is ""; give text'),
    ({"prompt": None}, "prompt is null; give text"),
    ({"prompt": ["a", 5]}, "give text, tokens, or a list"),
    ({"prompt": [-1]}, "give text, tokens, or a list"),
    (
        {"prompt": [5, 99999]},
        "The prompt has the token 99999, and the target's are below 4096; encode it",
    ),
    ({"prompt": "word " * 5000}, "The prompt has 5001 tokens, and the target's context holds 2048"),
    ({"model": "gpt-4o"}, "model is 'gpt-4o', and the target of this run is 'llama-7m'; name that one."),
    ({"model": 5}, "model is 5; give the name of the target"),
]
CHAT_WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": "x"}, "field 'prompt'"),
    ({"messages": []}, "messages is []; give a list of objects"),
    ({"messages": ["hi"]}, 'messages holds "hi"; give objects'),
    ({"messages": [{"role": "user"}]}, "content is null; give text"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "or a list of parts of text",
    ),
    (
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": 1}]}]},
        "A message has the field 'tool_calls', which is not supported",
    ),
    ({"tools": [{"type": "function"}]}, "tools is [{"),
    ({"response_format": {"type": "json_object"}}, 'response_format is {"type": "json_object"}'),
    ({"logprobs": 2}, "logprobs is 2; give true or false"),
    ({"top_logprobs": 2}, "top_logprobs is 2; give an integer from 0 to 20 with logprobs"),
]


def test_what_is_not_supported_is_its_requests_error_and_the_rest_is_written(asked):
    rows = [request(f"wrong {n}", **body) for n, (body, _) in enumerate(WRONG)]
    rows += [request(f"chat {n}", chat=True, **body) for n, (body, _) in enumerate(CHAT_WRONG)]
    odd = [
        ({**request("get"), "method": "GET"}, 'method is "GET"; give POST.'),
        ({**request("url"), "url": "/v1/embeddings"}, 'url is "/v1/embeddings"; give /v1/completions or'),
        ({**request("body"), "body": []}, "body is []; give an object."),
        ({**request("more"), "priority": 1}, "The request has the unknown field 'priority'"),
    ]
    written = asked(request("good"), *rows, *(row for row, _ in odd), request("good too"), code=1)
    reasons = [reason for _, reason in (*WRONG, *CHAT_WRONG)] + [reason for _, reason in odd]
    assert written[0]["status_code"] == written[-1]["status_code"] == 200
    for response, reason in zip(written[1:-1], reasons, strict=True):
        error = response["body"]["error"]
        assert reason in error["message"]
        assert "\n" not in error["message"]
        assert error["type"] == "invalid_request_error"
        assert response["status_code"] == 400


NOTHING: dict[str, Any] = {
    "user": "me", "logit_bias": {}, "stop": [], "echo": False, "n": 1, "best_of": 1, "stream": False,
    "presence_penalty": 0, "frequency_penalty": 0.0, "suffix": None, "logprobs": None, "metadata": {"a": "b"},
    "store": False, "seed": None, "temperature": None, "top_p": 1, "stream_options": None, "max_tokens": None,
}  # fmt: skip


def test_fields_that_change_nothing_are_taken(asked):
    chat = {
        name: value
        for name, value in NOTHING.items()
        if name not in ("echo", "best_of", "suffix", "logprobs")
    } | {"tools": [], "tool_choice": "none", "response_format": {"type": "text"}, "logprobs": False}
    plain, more, of_chat, more_chat = asked(
        request("a"), request("b", **NOTHING), request("c", chat=True), request("d", chat=True, **chat)
    )
    assert plain["body"]["choices"] == more["body"]["choices"]
    assert of_chat["body"]["choices"] == more_chat["body"]["choices"]


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (
            [request("a"), request("b"), request("a")],
            "has the custom_id 'a' 2 times; give every request its own.",
        ),
        (
            [request("a"), {**request("b"), "custom_id": ""}],
            'line 2: "custom_id" is ""; give every request its',
        ),
        ([request("a"), {"prompt": "x"}], 'line 2: "custom_id" is null; give every request its own name'),
        ([{"prompt": "x"}, request("a")], 'line 2: "prompt" is missing'),
    ],
)
def test_a_file_without_names_to_answer_to_is_refused(refused, tmp_path, rows, reason):
    prompts = write(tmp_path / "asked.jsonl", *rows)
    assert reason in refused("generate", "--data", prompts, "--out", tmp_path / "out.jsonl")
    assert not (tmp_path / "out.jsonl.part").exists()


def test_half_a_character_in_a_request(asked):
    good, bad, chat = asked(
        request("a"), request("b", prompt="half \ud800"),
        request("c", chat=True, messages=[{"role": "user", "content": "\udc00"}]), code=1,
    )  # fmt: skip
    assert good["status_code"] == 200
    line = json.dumps(request("b", prompt="half \ud800"))
    column = line.index("\\ud800") + 1
    assert f"Line 2 of the prompts, column {column}:" in bad["body"]["error"]["message"]
    assert "Line 3 of the prompts" in chat["body"]["error"]["message"]


def test_a_verifier_that_was_named_refuses_what_it_cannot_write(asked):
    words = (*DEFAULT, "--verifier", "greedy")
    cold, warm = asked(request("a"), request("b", temperature=0.7), code=1, words=words)
    assert cold["status_code"] == 200
    assert warm["status_code"] == 400
    assert "temperature" in warm["body"]["error"]["message"]


class Killed(BaseException):
    """Ends everything, as SIGKILL does."""


def test_a_batch_that_ended_early_goes_on_to_the_same_answers(draftwood, tmp_path, monkeypatch):
    rows = [request(f"{n}", temperature=n / 4, n=1 + n % 2, max_tokens=2 + n) for n in range(5)]
    rows.insert(2, request("wrong", echo=True))
    prompts, append = write(tmp_path / "asked.jsonl", *rows), Journal.append

    def run(out: Path) -> Any:
        return draftwood("generate", "--data", prompts, "--out", out, *DEFAULT)

    def dying(self: Journal, record: Any) -> Any:
        if len(list(self.records())) == 4:
            raise Killed
        return append(self, record)

    assert run(tmp_path / "whole.jsonl").exit_code == 1
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "append", dying)
        run(tmp_path / "out.jsonl")
    result = run(tmp_path / "out.jsonl")
    assert "4 texts are there already, 2 are missing." in result.stderr
    assert "1 of 6 prompts were refused; number 2, the first, because: echo is true" in result.stderr

    def timeless(file: Path) -> list[dict[str, Any]]:
        found = answers(file)
        for one in found:
            one["response"]["body"].pop("created", None)
        return found

    assert timeless(tmp_path / "out.jsonl") == timeless(tmp_path / "whole.jsonl")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["asked.jsonl", "out.jsonl", "whole.jsonl"]
    assert text_file.VERSION == 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 2**70) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(
    [*NOTHING, "prompt", "messages", "model", "temperature", "max_completion_tokens", "tools", "top_logprobs"]
)


@given(
    st.lists(st.tuples(NAMES | st.text(max_size=5), JSON), max_size=3),
    st.booleans(),
    st.sampled_from(["method", "url", "body", "more"]),
    JSON,
)
def test_a_request_is_read_or_refused_whatever_it_holds(tmp_path_factory, fields, chat, place, value):
    file = tmp_path_factory.mktemp("b") / "asked.jsonl"
    row = request("a", chat=chat)
    write(file, {**row, "body": row["body"] | dict(fields)}, {**row, "custom_id": "b", place: value})
    for line in read_prompts(file).lines:
        assert (line.refused is None) == bool(line.rows)
        if line.refused is not None:
            assert line.refused.endswith((".", "?"))
            assert "\n" not in line.refused
        for one in line.rows:
            assert isinstance(one.prompt, Chat if chat else (str, tuple))
