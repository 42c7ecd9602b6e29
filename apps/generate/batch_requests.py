"""OpenAI's batch files: a request a line, and an answer a line."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from draftwood.apps.files.conversations import HalfCharacter, WrongField
from draftwood.apps.files.text_input import HALF
from draftwood.apps.models.asked import BatchRequest, Chat, Kind, Prompt, PromptLine, Row, TextSettings
from draftwood.base.errors import InvalidInput, nearest

LAYOUT = "batch"
_URLS: Mapping[str, Kind] = {"/v1/completions": "completion", "/v1/chat/completions": "chat"}
_FIELDS = ("custom_id", "method", "url", "body")
_MOST_STOPS, _MOST_CHOICES, _MOST_LOGPROBS = 4, 128, 20
_LARGEST_SEED = 2**63

# Fields that change nothing where they have these values, which are the defaults of a request.
_PLAIN: Mapping[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "modalities": (["text"],),
    "presence_penalty": (0,),
    "response_format": ({"type": "text"},),
    "service_tier": ("auto", "default"),
    "stream": (False,),
    "stream_options": (),
    "suffix": ("",),
    "tool_choice": ("none",),
    "tools": ([],),
}
_TOLD = ("metadata", "store", "user", "safety_identifier", "prompt_cache_key")
"""What is for OpenAI's own books."""


class _Refused(Exception):
    """A request that cannot be written; one sentence."""


def _count(value: Any) -> bool:
    return type(value) is int and 1 <= value < 2**31


def _number(low: float, high: float, *, above: bool = False) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        return type(value) in (int, float) and (low < value if above else low <= value) and value <= high

    return fits


_NUMBERS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "max_tokens": (_count, "an integer of 1 or more"),
    "max_completion_tokens": (_count, "an integer of 1 or more"),
    "temperature": (_number(0, 2), "a number from 0 to 2"),
    "top_p": (_number(0, 1, above=True), "a number above 0, at most 1"),
    "min_p": (_number(0, 1), "a number from 0 to 1"),
    "top_k": (_count, "an integer of 1 or more"),
    "n": (lambda value: _count(value) and value <= _MOST_CHOICES, f"an integer from 1 to {_MOST_CHOICES}"),
    "seed": (
        lambda value: type(value) is int and 0 <= value < _LARGEST_SEED,
        "an integer of at least 0, of 63 bits",
    ),
}
_OWN: Mapping[Kind, tuple[str, ...]] = {
    "completion": ("prompt", "logprobs", "best_of", "echo", "suffix"),
    "chat": (
        "messages",
        "logprobs",
        "top_logprobs",
        "max_completion_tokens",
        "modalities",
        "response_format",
    ),
}
_BOTH = ("model", "stop", "seed", "n", "max_tokens", "temperature", "top_p", "min_p", "top_k")


def is_request(row: Mapping[str, Any]) -> bool:
    """Whether a row is a request, and the file a batch file."""
    return "custom_id" in row and ("body" in row or "url" in row)


def check_ids(file: Path, lines: Sequence[PromptLine]) -> None:
    """Raise `InvalidInput` where two requests have one name."""
    counts = Counter(line.request.custom_id for line in lines if line.request is not None)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise InvalidInput(
            f"{str(file)!r} has the custom_id {twice[0]!r:.60} {counts[twice[0]]} times; give every request "
            "its own."
        )


def of_model(line: PromptLine, target: str) -> PromptLine:
    """The line, refused where it is a request to another model than `target`."""
    names = (target, target.rstrip("/\\").replace("\\", "/").rpartition("/")[2], "draftwood")
    if line.request is None or line.refused is not None or line.request.model in names:
        return line
    reason = (
        f"model is {line.request.model!r:.80}, and the target of this run is {names[1]!r}; name that one."
    )
    return attrs.evolve(line, refused=reason)


def read(row: dict[str, Any], *, number: int) -> PromptLine:
    """The line of a request; `refused` where it asks for what cannot be written.

    Raises:
        WrongField: it has no `custom_id` by which it could be answered.
        HalfCharacter: its text is none.
    """
    name, body = row.get("custom_id"), row.get("body")
    if not isinstance(name, str) or not name:
        raise WrongField(f'"custom_id" is {_short(name)}; give every request its own name')
    kind = _URLS.get(str(row.get("url")), "completion")
    try:
        _check_row(row)
        assert isinstance(body, dict)
        rows, settings = _rows(body, kind), _settings(body, kind)
    except _Refused as reason:
        return refused(row, str(reason), number=number)
    if any(HALF.search(text) for row_prompt in rows for text in _texts(row_prompt)):
        raise HalfCharacter("prompt" if kind == "completion" else "messages")
    choices = body.get("n") or 1
    return PromptLine(
        number=number,
        shown=json.dumps(body.get("prompt" if kind == "completion" else "messages")),
        rows=tuple(Row(prompt, settings) for prompt in rows for _ in range(choices)),
        request=BatchRequest(
            custom_id=name, kind=kind, model=body["model"], seed=body.get("seed"), choices=choices
        ),
    )


def refused(row: Mapping[str, Any], reason: str, *, number: int) -> PromptLine:
    """The line of a request that cannot be written."""
    kind = _URLS.get(str(row.get("url")), "completion")
    request = BatchRequest(custom_id=str(row["custom_id"]), kind=kind)
    return PromptLine(number=number, shown=json.dumps(row.get("body")), request=request, refused=reason)


def _check_row(row: Mapping[str, Any]) -> None:
    if unknown := next((name for name in row if name not in _FIELDS), None):
        raise _Refused(f"The request has the unknown field {unknown!r:.60}{nearest(unknown, _FIELDS)}")
    if row.get("method") != "POST":
        raise _Refused(f"method is {_short(row.get('method'))}; give POST.")
    if not isinstance(row.get("url"), str) or row["url"] not in _URLS:
        raise _Refused(f"url is {_short(row.get('url'))}; give {' or '.join(_URLS)}.")
    if not isinstance(row.get("body"), dict):
        raise _Refused(f"body is {_short(row.get('body'))}; give an object.")


def _rows(body: Mapping[str, Any], kind: Kind) -> list[Prompt]:
    """Returns the tokens from which each choice continues, `n` not counted."""
    if kind == "chat":
        return [_chat(body.get("messages"))]
    prompt = body.get("prompt")
    several = prompt if isinstance(prompt, list) and prompt and not _are_tokens(prompt) else [prompt]
    return [_prompt(one, prompt) for one in several]


def _prompt(one: Any, whole: Any) -> str | tuple[int, ...]:
    if isinstance(one, str) and one:
        return one
    if _are_tokens(one):
        return tuple(one)
    raise _Refused(f"prompt is {_short(whole)}; give text, tokens, or a list of texts or of tokens.")


def _are_tokens(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(type(token) is int and 0 <= token < 2**31 for token in value)
    )


def _chat(messages: Any) -> Chat:
    if not isinstance(messages, list) or not messages:
        raise _Refused(f"messages is {_short(messages)}; give a list of objects with role and content.")
    return Chat(tuple(map(_message, messages)))


def _message(message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str) or not message["role"]:
        raise _Refused(f"messages holds {_short(message)}; give objects with role and content.")
    if odd := next(
        (key for key, value in message.items() if key not in ("role", "content", "name") and value), None
    ):
        raise _Refused(f"A message has the field {odd!r:.60}, which is not supported; leave it out.")
    content = message.get("content")
    if isinstance(content, list) and content and all(map(_is_text_part, content)):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise _Refused(f"content is {_short(message.get('content'))}; give text, or a list of parts of text.")
    named = {"name": message["name"]} if isinstance(message.get("name"), str) else {}
    return {"role": message["role"], "content": content, **named}


def _is_text_part(part: Any) -> bool:
    known = isinstance(part, dict) and part.get("type") == "text" and set(part) == {"type", "text"}
    return known and isinstance(part["text"], str)


def _settings(body: Mapping[str, Any], kind: Kind) -> TextSettings:
    """Returns the settings of the choices.

    Raises:
        _Refused: a field that is not known, not supported, or of another type.
    """
    known = {*_BOTH, *_OWN[kind], *_TOLD, *_PLAIN}
    for name, value in body.items():
        if name not in known or (name in _OWN["chat"] + _OWN["completion"] and name not in _OWN[kind]):
            raise _Refused(f"The body has the unknown field {name!r:.60}{nearest(name, known)}")
        if value is None or name in _TOLD:
            continue
        if name in _PLAIN and not any(
            value == plain and type(value) is type(plain) for plain in _plain(name)
        ):
            raise _Refused(f"{name} is {_short(value)}, which is not supported; leave it out.")
        if name in _NUMBERS and not _NUMBERS[name][0](value):
            raise _Refused(f"{name} is {_short(value)}; give {_NUMBERS[name][1]}.")
    if not isinstance(body.get("model"), str):
        raise _Refused(f"model is {_short(body.get('model'))}; give the name of the target.")
    longest = body.get("max_completion_tokens") or body.get("max_tokens")
    return TextSettings(
        max_new_tokens=longest,
        temperature=body.get("temperature"),
        top_k=body.get("top_k"),
        top_p=body.get("top_p"),
        min_p=body.get("min_p") or None,
        stop=_stop(body.get("stop")),
        logprobs=_logprobs(body, kind),
    )


def _plain(name: str) -> tuple[Any, ...]:
    """The values of a field that changes nothing; a number is one whether it has a point or not."""
    values = _PLAIN[name]
    return (*values, *(float(value) for value in values if type(value) is int))


def _stop(value: Any) -> tuple[str, ...]:
    stops = [] if value is None else [value] if isinstance(value, str) else value
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS:
        raise _Refused(f"stop is {_short(value)}; give a text, or a list of up to {_MOST_STOPS}.")
    if not all(isinstance(one, str) and one and not HALF.search(one) for one in stops):
        raise _Refused(f"stop is {_short(value)}; give texts of at least one character.")
    return tuple(stops)


def _logprobs(body: Mapping[str, Any], kind: Kind) -> int | None:
    told, top = body.get("logprobs"), body.get("top_logprobs")
    if kind == "chat":
        if told not in (None, False, True) or type(told) is int:
            raise _Refused(f"logprobs is {_short(told)}; give true or false.")
        if top is not None and (type(top) is not int or not 0 <= top <= _MOST_LOGPROBS or not told):
            raise _Refused(
                f"top_logprobs is {_short(top)}; give an integer from 0 to {_MOST_LOGPROBS} with logprobs."
            )
        return (top or 0) if told else None
    if told is not None and (type(told) is not int or not 0 <= told <= _MOST_LOGPROBS):
        raise _Refused(f"logprobs is {_short(told)}; give an integer from 0 to {_MOST_LOGPROBS}.")
    return told


def _texts(prompt: Prompt) -> list[str]:
    if isinstance(prompt, Chat):
        return [text for message in prompt.messages for text in message.values()]
    return [prompt] if isinstance(prompt, str) else []


def _short(value: Any) -> str:
    words = json.dumps(value)
    return words if len(words) <= 60 else f"{words[:57]}..."
