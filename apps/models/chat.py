"""Prompts as a chat model reads them: by the template of its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from draftwood.apps.files.datasets import Prompt
from draftwood.apps.files.text import decode
from draftwood.apps.terminal.cli_errors import first_line
from draftwood.base.errors import InvalidInput

AsChat = Annotated[
    bool,
    typer.Option("--chat", help="Put every prompt into the chat template of the target's tokenizer."),
]
"""The option of commands whose prompts may be a user's messages, which most published heads are made for."""


def encoded(tokenizer: Any, texts: Sequence[str], *, chat: bool) -> list[list[int]]:
    """Returns the tokens of prompts, each as a user's only message where it is a `chat`.

    Raises:
        InvalidInput: a chat, and a tokenizer without a template or with one that fails.
    """
    if not chat:
        plain: list[list[int]] = tokenizer(list(texts))["input_ids"]
        return plain
    return [encoded_chat(tokenizer, Prompt(text)) for text in texts]


def encoded_chat(tokenizer: Any, prompt: Prompt, answers: Sequence[str] = ()) -> list[int]:
    """Returns the tokens of a conversation up to the turn that follows `answers`, by the chat template.

    Args:
        tokenizer: the target's.
        prompt: the conversation.
        answers: to the turns before. An answer that the file gives takes the place of one of these.

    Raises:
        InvalidInput: a tokenizer without a template or with one that fails.
    """
    if getattr(tokenizer, "chat_template", None) is None:
        raise InvalidInput("--chat was given, and the target's tokenizer has no chat template; leave it out.")
    messages = [] if prompt.system is None else [{"role": "system", "content": prompt.system}]
    for turn, answer in zip(prompt.chat, answers, strict=False):
        said = answer if turn.answer is None else turn.answer
        messages += [{"role": "user", "content": turn.user}, {"role": "assistant", "content": said}]
    messages.append({"role": "user", "content": prompt.chat[len(answers)].user})
    try:
        return list(
            tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        )
    except Exception as error:  # a template is a program
        raise InvalidInput(
            f"The chat template of the target's tokenizer fails ({first_line(error)}); leave --chat out."
        ) from error


def answer_tokens(tokenizer: Any, tokens: Sequence[int], stops: Sequence[str] = ()) -> list[int]:
    """`tokens` before an end of text, and before the first of `stops` in their text."""
    end = tokenizer.eos_token_id
    kept = list(tokens[: tokens.index(end)] if end in tokens else tokens)
    text = decode(tokenizer, kept)
    for stop in stops:
        text = text.split(stop, 1)[0]
    while not text.startswith(decode(tokenizer, kept)):
        kept.pop()
    return kept
