"""The lines of a file of prompts, and the texts that each line asks for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from draftwood import SamplingParams
from draftwood.laws.randomness import row_seeds

Record = dict[str, Any]
"""A line of the file of texts."""

Message = Mapping[str, str]


@attrs.frozen
class Chat:
    """Messages, each with `role` and `content`, that the tokenizer's template makes a prompt of."""

    messages: tuple[Message, ...]


Prompt = str | tuple[int, ...] | Chat
"""A prompt: text, tokens, or messages."""


@attrs.frozen(kw_only=True)
class TextSettings:
    """The options of one text; None: the command's.

    Attributes:
        max_new_tokens: its longest length.
        temperature: of target and draft.
        top_k: as in `SamplingParams`, and so `top_p` and `min_p`.
        stop: strings that end it.
        logprobs: how many likely tokens are told at each position, besides the written one.
    """

    max_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    stop: tuple[str, ...] = ()
    logprobs: int | None = None

    def sampling(self, usual: SamplingParams | None) -> SamplingParams | None:
        """The `usual` parameters with these; None where nothing is asked for."""
        names = ("temperature", "top_k", "top_p", "min_p")
        own = {name: value for name in names if (value := getattr(self, name)) is not None}
        return attrs.evolve(usual or SamplingParams(), **own) if own else None


@attrs.frozen
class Row:
    """One text of a line.

    Attributes:
        prompt: what it goes on from.
        settings: what it is written with.
        seed: of its random numbers, wherever it is written.
    """

    prompt: Prompt
    settings: TextSettings = TextSettings()
    seed: int = 0


Kind = Literal["completion", "chat"]


@attrs.frozen(kw_only=True)
class BatchRequest:
    """A request of OpenAI's batch files, which its answer names.

    Attributes:
        custom_id: the caller's own name of it.
        kind: `"completion"` or `"chat"`.
        model: as the request calls it.
        seed: the request's own; None: that of its line.
        choices: texts of each of its prompts.
    """

    custom_id: str
    kind: Kind
    model: str = ""
    seed: int | None = None
    choices: int = 1


@attrs.frozen(kw_only=True)
class PromptLine:
    """A line of a file of prompts.

    Attributes:
        number: of the line among those that ask for something, from 0.
        shown: what the line of the texts says of the prompt.
        rows: its texts; none where it is `refused`.
        kept: fields of the line that the texts' line has again.
        request: where the file is one of OpenAI's batch files.
        refused: why the line cannot be written, as a sentence.
    """

    number: int
    shown: str
    rows: tuple[Row, ...] = ()
    kept: Mapping[str, Any] = attrs.field(factory=dict)
    request: BatchRequest | None = None
    refused: str | None = None

    def seeded(self, seed: int) -> PromptLine:
        """Returns a copy with a seed per text, spawned from that of its request, or else from `seed`."""
        own = seed if self.request is None or self.request.seed is None else self.request.seed
        seeds = iter([own] if len(self.rows) == 1 else row_seeds(own, len(self.rows)))
        return attrs.evolve(self, rows=tuple(attrs.evolve(row, seed=next(seeds)) for row in self.rows))
