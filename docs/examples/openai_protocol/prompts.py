"""Tokens of a request: of its prompts, or of its chat by the tokenizer's template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from draftwood.apps.files.text import decode
from openai_protocol.refused import Refused
from openai_protocol.schema import ChatAsked, CompletionAsked, Message

Prompt = tuple[list[int], int]
"""Token ids, and the characters of their text."""


def of_completion(asked: CompletionAsked, tokenizer: Any) -> list[Prompt]:
    """Returns the prompts of a completion, in order."""
    given = asked.prompt
    several: Sequence[Any] = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    return [
        (tokenizer(one)["input_ids"], len(one))
        if isinstance(one, str)
        else (one, len(decode(tokenizer, one)))
        for one in several
    ]


def of_chat(asked: ChatAsked, tokenizer: Any) -> list[Prompt]:
    """Returns the prompt of a chat.

    Raises:
        Refused: the template does not take these messages, or leaves one of them or a name out.
    """
    if tokenizer.chat_template is None:
        lines = [f"{_speaker(message)}: {message.text}" for message in asked.messages]
        text = "\n".join([*lines, "Assistant:"])
        return [(tokenizer(text)["input_ids"], len(text))]
    knows_developers = "developer" in str(tokenizer.chat_template)
    turns = [_turn(message, knows_developers=knows_developers) for message in asked.messages]
    text = _rendered(turns, tokenizer)
    nameless = [{"role": turn["role"], "content": turn["content"]} for turn in turns]
    if nameless != turns and _rendered(nameless, tokenizer) == text:
        raise Refused(
            400, "The model's chat template has no place for names; leave them out.", field="messages"
        )
    for number, message in enumerate(asked.messages):
        # Templates cut the thoughts out of earlier answers, so these may differ.
        if message.role != "assistant" and message.text.strip() not in text:
            sentence = f"The model's chat template leaves out what the {message.role} says; use other roles."
            raise Refused(400, sentence, field=f"messages[{number}]")
    return [(tokenizer(text, add_special_tokens=False)["input_ids"], len(text))]


def _speaker(message: Message) -> str:
    role = message.role.capitalize()
    return role if message.name is None else f"{role} ({message.name})"


def _turn(message: Message, *, knows_developers: bool) -> dict[str, str]:
    role = "system" if message.role == "developer" and not knows_developers else message.role
    turn = {"role": role, "content": message.text}
    return turn if message.name is None else {**turn, "name": message.name}


def _rendered(turns: list[dict[str, str]], tokenizer: Any) -> str:
    try:
        text: str = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    except MemoryError:
        raise
    except Exception as error:  # a template is a program of the model's authors, which may raise anything
        reason = str(error).strip().rstrip(".") or type(error).__name__
        sentence = f"The model's chat template does not take these messages: {reason}."
        raise Refused(400, sentence, field="messages") from None
    return text
