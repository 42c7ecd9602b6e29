"""The requests that the server reads: every field, its type, and the values that it may have.

Types are strict: `"false"` is no boolean, 1 is not true, NaN is no number. A field that is null counts as
left out, and one that is not here is refused by its name. `Only` marks the fields that this server does not
support, and the values at which they change nothing. `LABELS` change nothing at any value.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal, Self, TypeVar

import attrs
from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, ValidationError, model_validator
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from openai_protocol.refused import Refused

LABELS = ("user", "safety_identifier", "prompt_cache_key", "metadata", "parallel_tool_calls")
"""Fields that are checked, and change no text: names for a client's own use, and a switch of tools."""


def is_same(one: Any, other: Any) -> bool:
    """Returns whether two values of JSON are equal; false is not 0, and 0 is 0.0."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


@attrs.frozen(init=False)
class Only:
    """An annotation: the field supports nothing but `values`, at which it changes nothing, and null."""

    values: tuple[Any, ...]

    def __init__(self, *values: Any) -> None:
        self.__attrs_init__(values)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._check)

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {"enum": [*self.values, None]}

    def _check(self, value: Any) -> Any:
        if value is not None and not any(is_same(value, plain) for plain in self.values):
            raise PydanticCustomError("unsupported", "unsupported")
        return value

    @property
    def advice(self) -> str:
        shown = " or ".join(map(json.dumps, self.values))
        return f"this server supports only {shown} there, or leave it out" if shown else "leave it out"


def told(advice: str, **limits: Any) -> Any:
    """Returns a field that may be left out; `advice` completes "give ..." where its value is refused."""
    return Field(default=None, description=advice, **limits)


class Part(BaseModel):
    """A stricter `BaseModel`: no conversions, no unknown fields, no infinite numbers."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class StreamOptions(Part):
    """Options of a streamed answer."""

    include_usage: bool | None = told("true or false")
    include_obfuscation: Annotated[Any, Only(False)] = None


class TextPart(Part):
    """A part of a message."""

    type: Literal["text"] = Field(description='"text": this server reads no images, sounds or files')
    text: str = Field(description="a string")


Words = Annotated[str, Field(min_length=1)]
Texts = Annotated[list[Words], Field(min_length=1, fail_fast=True)]
Parts = Annotated[list[TextPart], Field(min_length=1, fail_fast=True)]
Id = Annotated[int, Field(ge=0, lt=2**31)]
Ids = Annotated[list[Id], Field(min_length=1, fail_fast=True)]


class Message(Part):
    """A turn of a chat. Answers of OpenAI's client carry more fields, which may come back as they were."""

    role: Literal["system", "developer", "user", "assistant"] = Field(
        description='"system", "developer", "user" or "assistant"'
    )
    content: str | Parts = Field(description='a string, or a list of {"type": "text", "text": ...}')
    name: Words | None = told("a string that is not empty")
    refusal: Annotated[Any, Only()] = None
    annotations: Annotated[Any, Only([])] = None
    audio: Annotated[Any, Only()] = None
    function_call: Annotated[Any, Only()] = None
    tool_calls: Annotated[Any, Only([])] = None

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class Asked(Part):
    """The fields that both kinds of requests have."""

    model: str | None = told("the name of a model, as a string")
    n: int | None = told("an integer above 0", ge=1, le=2**31)
    seed: int | None = told("an integer from 0 to 2**63 - 1", ge=0, lt=2**63)
    max_tokens: int | None = told("an integer above 0", ge=1, le=2**31)
    max_completion_tokens: int | None = told("an integer above 0", ge=1, le=2**31)
    temperature: float | None = told("a number from 0 to 2", ge=0, le=2)
    top_p: float | None = told("a number above 0 and up to 1", gt=0, le=1)
    top_k: int | None = told("an integer above 0, or -1 or 0 for all tokens", ge=-1, le=2**31)
    min_p: float | None = told("a number from 0 to 1", ge=0, le=1)
    presence_penalty: float | None = told("a number from -2 to 2", ge=-2, le=2)
    frequency_penalty: float | None = told("a number from -2 to 2", ge=-2, le=2)
    stop: Words | Annotated[list[Words], Field(max_length=4)] | None = told(
        "a string or a list of up to four, none of them empty"
    )
    stream: bool | None = told("true or false")
    stream_options: StreamOptions | None = told("an object with include_usage")
    best_of: int | None = told("the value of n, or leave it out", ge=1, le=2**31)
    user: str | None = told("a string")
    safety_identifier: str | None = told("a string")
    prompt_cache_key: str | None = told("a string")
    metadata: dict[str, str] | None = told("an object of up to 16 strings", max_length=16)
    parallel_tool_calls: bool | None = told("true or false")
    audio: Annotated[Any, Only()] = None
    echo: Annotated[Any, Only(False)] = None
    function_call: Annotated[Any, Only("none", "auto")] = None
    functions: Annotated[Any, Only([])] = None
    logit_bias: Annotated[Any, Only({})] = None
    modalities: Annotated[Any, Only(["text"])] = None
    prediction: Annotated[Any, Only()] = None
    reasoning_effort: Annotated[Any, Only("none")] = None
    response_format: Annotated[Any, Only({"type": "text"})] = None
    service_tier: Annotated[Any, Only("auto", "default")] = None
    store: Annotated[Any, Only(False)] = None
    suffix: Annotated[Any, Only("")] = None
    tool_choice: Annotated[Any, Only("none", "auto")] = None
    tools: Annotated[Any, Only([])] = None
    verbosity: Annotated[Any, Only("medium")] = None
    web_search_options: Annotated[Any, Only()] = None

    @model_validator(mode="after")
    def _together(self) -> Self:
        both = self.max_tokens, self.max_completion_tokens
        if None not in both and len(set(both)) == 2:
            refuse(f"max_tokens is {both[0]} and max_completion_tokens {both[1]}; give one of them")
        if self.stream_options is not None and not self.stream:
            refuse("stream_options is given and stream is not true; leave it out, or set stream")
        if self.best_of not in (None, self.n or 1):
            refuse(
                f"best_of is {self.best_of} and n is {self.n or 1}; no text is left out, so give them alike"
            )
        return self

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def limit(self) -> int | None:
        """Maximum number of new tokens."""
        return self.max_tokens if self.max_tokens is not None else self.max_completion_tokens

    @property
    def likeliest(self) -> int | None:
        """Returns the number of most likely tokens to show at each position; None: no log-probabilities."""
        raise NotImplementedError


class CompletionAsked(Asked):
    """A request for /v1/completions."""

    prompt: Words | Texts | Ids | Annotated[list[Ids], Field(min_length=1, fail_fast=True)] = Field(
        description="a string, a list of strings, a list of token ids or a list of such lists, none empty"
    )
    logprobs: int | None = told("an integer from 0 to 5", ge=0, le=5)

    @property
    def likeliest(self) -> int | None:
        return self.logprobs


class ChatAsked(Asked):
    """A request for /v1/chat/completions."""

    messages: list[Message] = Field(
        min_length=1, fail_fast=True, description="a list of messages that is not empty"
    )
    logprobs: bool | None = told("true or false")
    top_logprobs: int | None = told("an integer from 0 to 20", ge=0, le=20)

    @model_validator(mode="after")
    def _asks_for_them(self) -> Self:
        if self.top_logprobs is not None and not self.logprobs:
            refuse("top_logprobs is given and logprobs is not true; leave it out, or set logprobs")
        return self

    @property
    def likeliest(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


def refuse(sentence: str) -> None:
    """Refuses fields that do not go together."""
    raise PydanticCustomError("together", "{sentence}", {"sentence": sentence})


Kind = TypeVar("Kind", bound=Asked)
Path = list[str | int]


def read(body: bytes, kind: type[Kind]) -> Kind:
    """Returns the request in a body.

    Raises:
        Refused: status 400; the body is no such request, and the sentence says why.
    """
    try:
        given = read_object(body)
        try:
            return kind.model_validate(given)
        except ValidationError as error:
            path, sentence = explain(error, kind, given)
    except RecursionError:
        raise Refused(400, "The body is nested too deeply; no field here is.") from None
    raise Refused(400, f"{sentence}.", field=path or None)


def read_object(body: bytes) -> dict[str, Any]:
    """Returns a JSON object: no field twice, no half of a surrogate pair, no NaN, no byte order mark."""
    if body.startswith(BOM_UTF8):
        raise Refused(400, "The body begins with a byte order mark; leave it out.")
    try:
        given = json.loads(body.decode(), object_pairs_hook=_unique, parse_constant=_no_number)
        json.dumps(given, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise Refused(400, f"The body is not UTF-8 at byte {error.start}; send JSON in UTF-8.") from None
    except UnicodeEncodeError:
        raise Refused(
            400, "The body holds half of a surrogate pair, which is no text; leave it out."
        ) from None
    except ValueError as error:
        # What follows a semicolon is Python's advice to programmers.
        raise Refused(
            400, f"The body is no JSON that this server reads: {str(error).split(';')[0]}."
        ) from None
    if not isinstance(given, dict):
        raise Refused(400, "The body is JSON and no object; send an object.")
    return given


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the field {_shown(twice)} is there twice")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def explain(error: ValidationError, kind: type[Part], given: Mapping[str, Any]) -> tuple[str, str]:
    """Returns the name of the field that is wrong, and a sentence about it without its full stop."""
    # A type with alternatives tells of each of them; the deepest is the one that was meant.
    errors = [(_path(one, given), one) for one in error.errors(include_url=False)]
    path, found = max(errors, key=lambda one: len(one[0]))
    name = _spelt(path)
    if found["type"] == "together":
        return "", found["msg"]
    if found["type"] == "extra_forbidden":
        return name, f"This server does not know the field {name}; leave it out"
    if found["type"] == "missing":
        return name, f"{name} is missing; {_advice(kind, path)}"
    value: Any = given
    for step in path:
        value = value[step]
    return name, f"{name} is {_shown(value)}; {_advice(kind, path)}"


def _path(error: ErrorDetails, given: Any) -> Path:
    """Returns the place of an error in the request, without pydantic's names of alternatives."""
    path: Path = []
    for step in error["loc"]:
        with suppress(LookupError, TypeError):
            given = given[step]
            path.append(step)
    return [*path, error["loc"][-1]] if error["type"] == "missing" else path


INSIDE: dict[str, type[Part]] = {"messages": Message, "content": TextPart, "stream_options": StreamOptions}
"""The models of the objects that fields hold."""


def _advice(kind: type[Part], path: Path) -> str:
    said = ""
    for step in path:
        if isinstance(step, str) and (field := kind.model_fields.get(step)) is not None:
            only = next((one for one in field.metadata if isinstance(one, Only)), None)
            said = only.advice if only is not None else f"give {field.description}"
            kind = INSIDE.get(step, kind)
    return said


def _spelt(path: Path) -> str:
    steps = [f"[{step}]" if isinstance(step, int) else f".{step}" for step in path]
    return _cut("".join(steps).removeprefix("."))


def _shown(value: Any) -> str:
    return _cut(json.dumps(value))


def _cut(text: str, most: int = 60) -> str:
    return text if len(text) <= most else f"{text[:most]}..."
