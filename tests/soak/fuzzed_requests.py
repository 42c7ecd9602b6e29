"""Requests that a fuzzer makes of the example server's published schema, and single fields at any value.

Every one gets an answer with a documented status, on a connection that is kept: nothing against the schema is
accepted, no field is ignored, and no request fails in the server.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from http.client import HTTPConnection
from typing import Any

import attrs
import hypothesis
import schemathesis
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion
from pydantic import BaseModel
from schemathesis import GenerationMode

from tests.served import Served, part, served
from tests.soak.result import SoakResult

DOCUMENTED = (200, 400, 404)  # the others are caused by no content
BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "Hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
}
TYPES: dict[str, type[BaseModel]] = {"/v1/completions": Completion, "/v1/chat/completions": ChatCompletion}
LONGEST, MOST = 3, 4

Values = st.SearchStrategy[Any]
_KEYS = st.sampled_from(["include_usage", "type", "role", "content"]) | st.text(max_size=3)
VALUES: Values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 6)
    | st.integers()
    | st.floats(0, 2)
    | st.floats(allow_nan=False)
    | st.sampled_from(["", "auto", "false", "draftwood", "system"])
    | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=2),
    max_leaves=4,
)
RIGHT: dict[str, Values] = {
    "prompt": st.text("ab é", min_size=1) | st.lists(st.integers(0, 4095), min_size=1, max_size=9),
    "model": st.sampled_from(["draftwood", "gpt-4"]),
    "n": st.integers(1, MOST + 1),
    "best_of": st.integers(1, 2),
    "seed": st.integers(0, 2**63 - 1),
    "max_tokens": st.integers(1, LONGEST + 1),
    "max_completion_tokens": st.integers(1, LONGEST + 1),
    "temperature": st.floats(0, 2),
    "top_p": st.floats(0, 1, exclude_min=True),
    "top_k": st.integers(-1, 5000),
    "min_p": st.floats(0, 1),
    "presence_penalty": st.floats(-2, 2),
    "frequency_penalty": st.floats(-2, 2),
    "stop": st.text("aeinot ", min_size=1, max_size=2) | st.lists(st.sampled_from("aeinot"), max_size=4),
    "stream": st.booleans(),
    "stream_options": st.fixed_dictionaries({}, optional={"include_usage": st.none() | st.booleans()}),
    "logprobs": st.booleans() | st.integers(0, 5),
    "top_logprobs": st.integers(0, 20),
    "metadata": st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2),
}
"""Values that fields may have, beyond those of `VALUES`."""
ALONG: dict[str, dict[str, Any]] = {"stream_options": {"stream": True}, "top_logprobs": {"logprobs": True}}
"""What a field needs along with it."""


@attrs.define
class Asked:
    """A request and its answer.

    Attributes:
        body: the answer, or None where it is a stream.
        events: of a stream.
        rows: the settings of every text that the decoder was given for it.
    """

    content: Any
    status: int
    kind: str
    body: Any
    events: list[Any]
    rows: list[dict[str, Any]]

    @property
    def texts(self) -> dict[int, str]:
        """Returns the text of every choice."""
        found: dict[int, str] = {}
        for answer in [self.body] if self.body else self.events:
            for choice in answer["choices"]:
                said = choice.get("message") or choice.get("delta") or {"content": choice.get("text")}
                found[choice["index"]] = found.get(choice["index"], "") + (said.get("content") or "")
        return found

    @property
    def shows_logprobs(self) -> bool:
        answers = [self.body] if self.body else self.events
        return any(choice["logprobs"] for answer in answers for choice in answer["choices"])


def has_effect(asked: Asked, name: str, value: Any) -> bool:
    """Whether a field of an accepted request has done its work, or has none at its value."""
    schema = part("schema")
    settings = [row["sampling"] for row in asked.rows]
    match name:
        case "prompt" | "messages" | "n":
            given = asked.content.get("prompt", "")
            prompts = 1 if isinstance(given, str) or isinstance(given[0], int) else len(given)
            return len(asked.texts) == len(asked.rows) == prompts * (asked.content.get("n") or 1)
        case "best_of":
            return bool(value == (asked.content.get("n") or 1))
        case "model":
            return all(answer["model"] == value for answer in ([asked.body] if asked.body else asked.events))
        case "seed":
            return bool(asked.rows[0]["seed"] == value)
        case "max_tokens" | "max_completion_tokens":
            return all(row["max_new_tokens"] == value for row in asked.rows)
        case "temperature" | "top_p":
            return all(getattr(one, name) == value for one in settings)
        case "top_k" | "min_p":  # 0 and less keep all tokens
            return all((getattr(one, name) or 0) == max(value, 0) for one in settings)
        case "presence_penalty" | "frequency_penalty":
            short = name.removesuffix("_penalty")
            found = [getattr(one.processors[0], short) if one.processors else 0 for one in settings]
            return set(found) == {value}
        case "stop":
            stops = [value] if isinstance(value, str) else value
            return not any(stop in text for stop in stops for text in asked.texts.values())
        case "stream":
            return (asked.kind == "text/event-stream") is value
        case "stream_options":
            return ("usage" in asked.events[-1]) == bool(value.get("include_usage"))
        case "logprobs" | "top_logprobs":
            top = asked.content.get("top_logprobs") or 0
            wanted = {True: top, False: None}[value] if isinstance(value, bool) else value
            # A text that was cut to nothing has no token to show.
            shown = asked.shows_logprobs or not any(asked.texts.values())
            return all(row["logprobs"] == wanted for row in asked.rows) and shown is not (wanted is None)
        case _:
            return name in schema.LABELS or any(schema.is_same(value, one) for one in plain(name))


def fields() -> dict[str, Any]:
    schema = part("schema")
    return {**schema.CompletionAsked.model_fields, **schema.ChatAsked.model_fields}


def plain(name: str) -> tuple[Any, ...]:
    """The values at which an unsupported field changes nothing."""
    field = fields().get(name)
    found = [one.values for one in (field.metadata if field else ()) if hasattr(one, "values")]
    return found[0] if found else ()


def one_field() -> Values:
    """A field, known or not, at any value."""

    def with_value(name: str) -> Values:
        right = RIGHT.get(name, st.sampled_from([None, *plain(name)]))
        return (VALUES | right | right).map(lambda value: {**ALONG.get(name, {}), name: value})

    return (st.sampled_from(sorted(fields())) | st.text(max_size=5)).flatmap(with_value)


@attrs.define
class Asker:
    """One kept connection to a server, and a watch on what its decoder is given."""

    one: Served
    _client: HTTPConnection = attrs.field(init=False)
    _rows: list[dict[str, Any]] = attrs.field(factory=list, init=False)

    def __attrs_post_init__(self) -> None:
        self._client = HTTPConnection(*self.one.address, timeout=120)
        server = self.one.server
        server.shared = _Watched(server.shared, self._rows)

    def ask(self, path: str, content: Any) -> Asked:
        self._rows.clear()
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        connected = self._client.sock
        self._client.request("POST", path, body)
        answer = self._client.getresponse()
        read, kind = answer.read(), answer.headers["content-type"]
        assert connected in (None, self._client.sock), "the connection was closed"
        if kind == "application/json":
            return Asked(content, answer.status, kind, json.loads(read), [], list(self._rows))
        lines = read.split(b"\n\n")
        assert lines[-2:] == [b"data: [DONE]", b""], "the stream has no end"
        events = [json.loads(line.removeprefix(b"data: ")) for line in lines[:-2]]
        return Asked(content, answer.status, kind, None, events, list(self._rows))

    def begin_again(self) -> None:
        self._client.close()


@attrs.define
class _Watched:
    """A shared decoder that notes what it is given."""

    _shared: Any
    _rows: list[dict[str, Any]]

    def add(self, prompt: Any, **settings: Any) -> Any:
        self._rows.append(settings)
        return self._shared.add(prompt, **settings)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shared, name)


def fault(path: str, asked: Asked, *, invalid: bool) -> str | None:
    """Returns the fault of an answer, or None. `invalid`: the request is against the schema."""
    if asked.status not in DOCUMENTED:
        return f"status {asked.status}: {asked.body}"
    if asked.status != 200:
        error = asked.body["error"]
        right = error.keys() == {"message", "type", "param", "code"} and error["message"].endswith(".")
        return None if right else f"the error {error}"
    if invalid:
        return "it is accepted"
    if asked.body:
        TYPES[path].model_validate(asked.body)
    given = [(name, value) for name, value in asked.content.items() if value is not None]
    ignored = [name for name, value in given if not has_effect(asked, name, value)]
    return f"{ignored} are ignored" if ignored else None


def _whole_numbers(value: Any) -> Any:
    """JSON Schema takes 2.0 for an integer, and the server does not."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_whole_numbers(one) for one in value]
    return {name: _whole_numbers(one) for name, one in value.items()} if isinstance(value, dict) else value


def fuzzed_requests(count: int, *, seed: int = 0) -> SoakResult:
    """About `count` requests: by the schema, against it, and with one field more than they need."""
    result = SoakResult("requests to the example server")
    document = json.dumps(part("openapi").document(longest=LONGEST, most=MOST))
    document = document.replace(f'"exclusiveMaximum": {2**31}', '"exclusiveMaximum": 4096')  # the vocabulary
    schema = schemathesis.openapi.from_dict(json.loads(document))
    with served(temperature=0.7, most=MOST, longest=LONGEST) as one:
        asker = Asker(one)

        def tried(kind: str, path: str, invalid: bool, content: Any) -> None:
            try:
                asked = asker.ask(path, content)
                kind = f"{kind}: {asked.status}"
                wrong = fault(path, asked, invalid=invalid)
            except Exception as error:  # a dropped connection, or an answer that cannot be read
                wrong = f"{type(error).__name__}: {error}"
                asker.begin_again()
            result.tried(kind, wrong and f"{wrong}; {content!r:.300}")

        for path, base in BASES.items():
            cases = {mode: schema[path]["POST"].as_strategy(generation_mode=mode) for mode in GenerationMode}
            right = cases[GenerationMode.POSITIVE].map(lambda case: _whole_numbers(case.body))
            wrong = cases[GenerationMode.NEGATIVE].map(lambda case: case.body)
            single = one_field().map(partial(_merged, base))
            for kind, contents in (("right", right), ("wrong", wrong), ("one field", single)):
                _search(
                    contents, partial(tried, kind, path, kind == "wrong"), count=-(-count // 6), seed=seed
                )
    return result


def _merged(base: dict[str, Any], more: dict[str, Any]) -> dict[str, Any]:
    return {**base, **more}


def _search(contents: Values, ask: Callable[[Any], None], *, count: int, seed: int) -> None:
    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(contents)
    def search(content: Any) -> None:
        ask(content)

    search()
