"""Conversations in rows of JSON: `turns` of MT-Bench, `conversations` of ShareGPT, and `messages`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import attrs

from draftwood.apps.files.text_input import HALF, half_character

_USERS = ("human", "user")
_MODELS = ("assistant", "bard", "bing", "chatgpt", "gpt", "model")


class WrongField(Exception):
    """A field that cannot be used: its name and what is wrong, as the end of a sentence."""


class HalfCharacter(WrongField):
    """The field of this name holds half a character, which no tokenizer takes."""

    def __init__(self, field: str) -> None:
        super().__init__(f'"{field}" holds a lone surrogate, half a character of UTF-16; write it anew')
        self.field = field

    def column(self, line: str) -> int:
        """Where it is in the line as it is in the file, counted from 1."""
        return half_character(line, self.field)


@attrs.frozen
class Turn:
    """One turn of a conversation.

    Attributes:
        user: the message of the user.
        answer: the answer that the file gives; None where the model's own is wanted.
    """

    user: str
    answer: str | None = None


def text_of(row: Mapping[str, Any], field: str) -> str:
    """Returns the text of a field.

    Raises:
        WrongField: it is missing, blank or no text.
    """
    value = row.get(field)
    if not isinstance(value, str) or not value.strip():
        shown = json.dumps(value, ensure_ascii=False)[:40] if field in row else "missing"
        raise WrongField(f'"{field}" is {shown}; give text')
    if HALF.search(value):
        raise HalfCharacter(field)
    return value


def turns_in(row: Mapping[str, Any]) -> tuple[Turn, ...]:
    """Returns the turns of a user in `turns`.

    Raises:
        WrongField: no list of texts.
    """
    turns = _list(row, "turns", "texts")
    named = {f"turns[{number}]": turn for number, turn in enumerate(turns)}
    return tuple(Turn(text_of(named, name)) for name in named)


def shared_conversation(row: Mapping[str, Any]) -> tuple[str | None, tuple[Turn, ...]]:
    """Returns the system message, if any, and the turns in `conversations`, as ShareGPT's files have them."""
    return _turns(row, "conversations", role="from", text="value")


def message_conversation(row: Mapping[str, Any]) -> tuple[str | None, tuple[Turn, ...]]:
    """Returns the system message, if any, and the turns in `messages`, as OpenAI's protocol has them."""
    return _turns(row, "messages", role="role", text="content")


def _turns(
    row: Mapping[str, Any], field: str, *, role: str, text: str
) -> tuple[str | None, tuple[Turn, ...]]:
    """Messages of one side in a row are one message, and what precedes the user's first is left out.

    Raises:
        WrongField: no list of messages, a role that is not known, or no message of a user.
    """
    system: str | None = None
    said: list[tuple[bool, str]] = []
    for number, message in enumerate(_list(row, field, "messages")):
        place = f"{field}[{number}]"
        if not isinstance(message, dict):
            raise WrongField(
                f'"{place}" is {json.dumps(message)[:40]}; give an object with {role} and {text}'
            )
        who = message.get(role)
        words = text_of({f"{place}.{text}": _joined(message.get(text))}, f"{place}.{text}")
        if who == "system" and not said:
            system = words
        elif who in _USERS or who in _MODELS:
            if said and said[-1][0] == (who in _USERS):
                words = f"{said.pop()[1]}\n\n{words}"
            if said or who in _USERS:
                said.append((who in _USERS, words))
        else:
            raise WrongField(
                f'"{place}.{role}" is {json.dumps(who)[:40]}; give user or assistant, and system first'
            )
    if not said:
        raise WrongField(f'"{field}" holds no message of a user; leave the row out')
    users = [words for of_user, words in said if of_user]
    answers = [words for of_user, words in said if not of_user]
    answers += [None] * (len(users) - len(answers))  # type: ignore[list-item]
    return system, tuple(map(Turn, users, answers))


def _joined(content: Any) -> Any:
    """Returns the text of a message in parts; anything else as it is."""
    if not isinstance(content, list) or not content:
        return content
    parts: list[Any] = [
        part.get("text") if isinstance(part, dict) and part.get("type") == "text" else None
        for part in content
    ]
    return "".join(parts) if all(isinstance(part, str) for part in parts) else content


def _list(row: Mapping[str, Any], field: str, of: str) -> list[Any]:
    value = row.get(field)
    if not isinstance(value, list) or not value:
        shown = json.dumps(value, ensure_ascii=False)[:40] if field in row else "missing"
        raise WrongField(f'"{field}" is {shown}; give a list of {of}')
    return value
