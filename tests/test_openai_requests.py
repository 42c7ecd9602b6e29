"""Requests to the example server: every field that it reads, and a sentence for all that it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.openai_asked import MESSAGES, OPTIONS, TEMPERATURE
from tests.served import EXAMPLES, part, served


@pytest.fixture
def server():
    with served(**OPTIONS) as one:
        yield one


COMPLETION = {"prompt": "Hi", "max_tokens": 4, "seed": 1}
CHAT = {"messages": MESSAGES, "max_tokens": 4, "seed": 1}
PLAIN = {
    "audio": None,
    "best_of": 1,
    "echo": False,
    "frequency_penalty": 0,
    "function_call": "auto",
    "functions": [],
    "logit_bias": {},
    "metadata": {"a": "b"},
    "min_p": 0,
    "modalities": ["text"],
    "model": None,
    "n": 1,
    "parallel_tool_calls": True,
    "prediction": None,
    "presence_penalty": 0.0,
    "prompt_cache_key": "a",
    "reasoning_effort": "none",
    "response_format": {"type": "text"},
    "safety_identifier": "a",
    "service_tier": "auto",
    "stop": [],
    "store": False,
    "stream": False,
    "stream_options": None,
    "suffix": None,
    "temperature": TEMPERATURE,
    "tool_choice": "none",
    "tools": [],
    "top_k": 0,
    "top_p": 1.0,
    "user": "a",
    "verbosity": "medium",
    "web_search_options": None,
}


@pytest.mark.parametrize(("path", "base"), [("completions", COMPLETION), ("chat/completions", CHAT)])
def test_fields_at_their_plain_values_change_nothing(server, path, base):
    def said(given):
        status, answer = server.ask(f"/v1/{path}", {**base, **given})
        assert status == 200, answer
        return [choice.get("text", choice.get("message")) for choice in answer["choices"]]

    plain = said({})
    assert said(PLAIN) == plain
    assert said(dict.fromkeys(PLAIN)) == plain
    # A client's own words, given back as it got them.
    if path != "completions":
        turn: dict[str, Any] = {
            "role": "assistant",
            "content": "Yes.",
            "refusal": None,
            "annotations": [],
            "tool_calls": None,
        }
        given = {**base, "messages": [*MESSAGES, turn, {"role": "user", "content": "Why?"}]}
        assert server.ask(f"/v1/{path}", given)[0] == 200


REFUSED = [
    ({"max_tokens": 0}, "max_tokens is 0; give an integer above 0."),
    ({"max_tokens": False}, "max_tokens is false; give"),
    ({"max_tokens": ""}, 'max_tokens is ""; give'),
    ({"max_tokens": []}, "max_tokens is []; give"),
    ({"max_tokens": 10**6}, "max_tokens is 1000000; give 200 at most."),
    ({"max_tokens": 4.0}, "max_tokens is 4.0; give"),
    ({"max_completion_tokens": 5}, "max_tokens is 4 and max_completion_tokens 5; give one of them."),
    ({"stream": "false"}, 'stream is "false"; give true or false.'),
    ({"stream": 1}, "stream is 1; give"),
    ({"stream_options": {"include_usage": True}}, "stream_options is given and stream is not true"),
    ({"stream": True, "stream_options": {"x": 1}}, "does not know the field stream_options.x; leave it out."),
    (
        {"stream": True, "stream_options": {"include_usage": 1}},
        "stream_options.include_usage is 1; give true",
    ),
    ({"temperature": -0.1}, "temperature is -0.1; give a number from 0 to 2."),
    ({"temperature": True}, "temperature is true; give"),
    ({"temperature": "1"}, 'temperature is "1"; give'),
    ({"temperature": 5e-324}, "temperature=5e-324 is too small: the logits overflow"),
    ({"top_p": 0}, "top_p is 0; give a number above 0"),
    ({"top_k": -2}, "top_k is -2; give"),
    ({"min_p": 1.1}, "min_p is 1.1; give"),
    ({"n": 0}, "n is 0; give"),
    ({"n": 21}, "The request is for 21 texts; ask for 20 at most."),
    ({"best_of": 2}, "best_of is 2 and n is 1"),
    ({"seed": -1}, "seed is -1; give"),
    ({"seed": 2**63}, "seed is 9223372036854775808; give"),
    ({"stop": ["a"] * 5}, "a string or a list of up to four"),
    ({"stop": ""}, 'stop is ""; give'),
    ({"stop": ["a", 5]}, "stop[1] is 5; give"),
    ({"presence_penalty": 3}, "presence_penalty is 3; give a number from -2 to 2."),
    ({"logit_bias": {"5": 1}}, 'logit_bias is {"5": 1}; this server supports only {} there'),
    ({"echo": True}, "echo is true; this server supports only false there, or leave it out."),
    ({"echo": 0}, "echo is 0; this server"),
    ({"suffix": "x"}, 'suffix is "x"; this server'),
    ({"store": True}, "store is true; this server"),
    ({"service_tier": "flex"}, 'supports only "auto" or "default" there'),
    ({"tools": [{}]}, "tools is [{}]; this server"),
    ({"response_format": {"type": "json_object"}}, "response_format is"),
    ({"metadata": {"a": 1}}, "metadata.a is 1; give an object of up to 16 strings."),
    ({"audio": {}}, "audio is {}; leave it out."),
    ({"user": 5}, "user is 5; give a string."),
    ({"frobnicate": None}, "This server does not know the field frobnicate; leave it out."),
    ({"Max_tokens": 5}, "does not know the field Max_tokens"),
    ({"logprobs": "1"}, 'logprobs is "1"; give'),
]
OF_COMPLETIONS = [
    ({"prompt": ""}, 'prompt is ""; give a string, a list of strings'),
    ({"prompt": None}, "prompt is null; give"),
    ({"prompt": []}, "prompt is []; give"),
    ({"prompt": [[]]}, "prompt[0] is []; give"),
    ({"prompt": [1, "a"]}, "give a string, a list of strings"),
    ({"prompt": [True]}, "prompt[0] is true; give"),
    ({"prompt": [-1]}, "prompt[0] is -1; give"),
    ({"prompt": [5000]}, "token 5000, outside the vocabulary of 4096"),
    ({"prompt": "word " * 5000}, "give 1 to 4096."),
    ({"logprobs": True}, "logprobs is true; give an integer from 0 to 5."),
    ({"logprobs": 6}, "logprobs is 6; give"),
    ({"top_logprobs": 1}, "does not know the field top_logprobs"),
    ({"messages": []}, "does not know the field messages"),
]
OF_CHATS = [
    ({"messages": []}, "messages is []; give a list of messages that is not empty."),
    ({"messages": "Hi"}, 'messages is "Hi"; give'),
    ({"messages": [1]}, "messages[0] is 1; give"),
    ({"messages": [{"role": "user"}]}, "messages[0].content is missing; give a string, or a list of"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content is null; give"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content is []; give"),
    ({"messages": [{"role": "tool", "content": "x"}]}, 'messages[0].role is "tool"; give "system"'),
    ({"messages": [{"content": "x"}]}, 'messages[0].role is missing; give "system"'),
    (
        {"messages": [{"role": "user", "content": "x", "mood": 1}]},
        "know the field messages[0].mood; leave it out.",
    ),
    (
        {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{}]}]},
        "messages[0].tool_calls is [{}]",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        'messages[0].content[0].type is "image_url"; give "text": this server reads no images',
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text is missing",
    ),
    ({"logprobs": 1}, "logprobs is 1; give true or false."),
    ({"top_logprobs": 2}, "top_logprobs is given and logprobs is not true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21; give an integer from 0 to 20."),
    ({"prompt": "x"}, "does not know the field prompt"),
]


@pytest.mark.parametrize(
    ("path", "base", "table"),
    [
        ("completions", COMPLETION, [*REFUSED, *OF_COMPLETIONS]),
        ("chat/completions", CHAT, [*REFUSED, *OF_CHATS]),
    ],
)
def test_a_refusal_is_a_sentence(server, path, base, table):
    for given, sentence in table:
        status, answer = server.ask(f"/v1/{path}", {**base, **given})
        assert (status, answer.keys()) == (400, {"error"}), given
        error = answer["error"]
        assert error.keys() == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
        assert sentence in error["message"], (given, error)
        assert error["message"].endswith(".")
        assert len(error["message"]) < 250


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "The body is no JSON that this server reads: Expecting value"),
        (b"no json", "The body is no JSON that this server reads: Expecting value"),
        (b"[1]", "The body is JSON and no object; send an object."),
        (b"\xef\xbb\xbf{}", "begins with a byte order mark; leave it out."),
        ('{"prompt": "Hi"}'.encode("utf-16"), "The body is not UTF-8 at byte 0"),
        (b'{"prompt": "\xff"}', "The body is not UTF-8 at byte 12"),
        (b'{"prompt": "\\ud800"}', "half of a surrogate pair"),
        (b'{"prompt": "a", "user": "\\udc00\\ud800"}', "half of a surrogate pair"),
        (b'{"prompt": "a", "\\ud800": 1}', "half of a surrogate pair"),
        (b'{"prompt": "a", "prompt": "b"}', 'the field "prompt" is there twice.'),
        (b'{"prompt": "a", "metadata": {"a": "b", "a": "c"}}', 'the field "a" is there twice.'),
        (b"[" * 10**5, "nested too deeply"),
        (b'{"prompt": "a", "tools": ' + b"[" * 970 + b"]" * 970 + b"}", ""),
        (b'{"a":' * 10**5, "nested too deeply"),
        (b'{"prompt": "a", "temperature": NaN}', "NaN is no number."),
        (b'{"prompt": "a", "temperature": -Infinity}', "-Infinity is no number."),
        (b'{"prompt": "a", "temperature": 1e999}', "temperature is Infinity; give a number from 0 to 2."),
        (b'{"prompt": "a", "seed": ' + b"1" * 5000 + b"}", "(4300 digits)"),
        (b'{"prompt": "a", "seed": ' + b"1" * 4000 + b"}", "seed is 1111"),
    ],
)
def test_a_body_that_is_no_request_is_refused(server, body, sentence):
    for path in ("/v1/completions", "/v1/chat/completions"):
        status, answer = server.ask(path, body)
        assert status == 400
        if path == "/v1/completions":
            assert sentence in answer["error"]["message"]
    assert server.ask("/v1/completions", {"prompt": "\U0001f600 Hi", "max_tokens": 1})[0] == 200


def test_the_page_names_every_field():
    page = (Path(EXAMPLES).parent / "serving.md").read_text(encoding="utf-8")
    schema = part("schema")
    for field in {**schema.CompletionAsked.model_fields, **schema.ChatAsked.model_fields}:
        assert f"`{field}`" in page, field
