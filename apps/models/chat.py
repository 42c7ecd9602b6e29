"""Prompts as a chat model reads them: by the template of its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

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
    if getattr(tokenizer, "chat_template", None) is None:
        raise InvalidInput("--chat was given, and the target's tokenizer has no chat template; leave it out.")
    try:
        return [
            list(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=True
                )["input_ids"]
            )
            for text in texts
        ]
    except Exception as error:  # a template is a program
        raise InvalidInput(
            f"The chat template of the target's tokenizer fails ({first_line(error)}); leave --chat out."
        ) from error
