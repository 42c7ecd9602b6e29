"""The objects of OpenAI's protocol that carry texts: whole ones, and the events of a stream."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from typing import Any

import attrs

from draftwood import QueuedText
from openai_protocol.texts import Piece, Token
from openai_protocol.writing import Writing

LEAST = -9999.0
"""What OpenAI gives as the log-probability of a token that cannot be drawn: JSON has no infinity."""


@attrs.frozen
class Answer:
    """One answer, for any number of choices.

    Attributes:
        model: its name.
        chat: whether it is a chat's.
        likeliest: as in `Choice`.
        streamed_usage: whether a stream ends with its usage; then all other events say that they have none.
        common: what all of its objects share.
    """

    model: str
    chat: bool
    likeliest: int | None
    streamed_usage: bool
    common: dict[str, Any] = attrs.field(init=False)

    @common.default
    def _common(self) -> dict[str, Any]:
        name = f"{'chatcmpl' if self.chat else 'cmpl'}-{secrets.token_hex(12)}"
        return {"id": name, "created": int(time.time()), "model": self.model}

    def whole(
        self, writings: Sequence[Writing], found: Sequence[Sequence[Piece]], usage: dict[str, Any]
    ) -> dict[str, Any]:
        """Returns the whole answer, made of the pieces of every text."""
        shown = []
        for index, (writing, pieces) in enumerate(zip(writings, found, strict=True)):
            text = "".join(piece.text for piece in pieces)
            message = {"role": "assistant", "content": text, "refusal": None}
            tokens = [token for piece in pieces for token in piece.tokens]
            choice = {
                "index": index,
                **({"message": message} if self.chat else {"text": text}),
                "logprobs": None if self.likeliest is None else self._logprobs(tokens, writing.start),
                "finish_reason": writing.choice.finish,
            }
            shown.append(choice)
        kind = "chat.completion" if self.chat else "text_completion"
        return {**self.common, "object": kind, "choices": shown, "usage": usage}

    def opening(self, index: int) -> dict[str, Any] | None:
        """Returns the first event of a chat's choice; None for completions, which have no such event."""
        if not self.chat:
            return None
        return self._event(index, {"delta": {"role": "assistant", "content": "", "refusal": None}})

    def piece(self, index: int, piece: Piece, start: int) -> dict[str, Any]:
        """Returns an event that carries a part of a choice."""
        said = {"delta": {"content": piece.text}} if self.chat else {"text": piece.text}
        logprobs = None if self.likeliest is None else self._logprobs(piece.tokens, start)
        return self._event(index, said, logprobs=logprobs)

    def closing(self, index: int, finish: str) -> dict[str, Any]:
        """Returns the last event of a choice."""
        return self._event(index, {"delta": {}} if self.chat else {"text": ""}, finish=finish)

    def usage(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Returns the last event of a stream."""
        return {**self.common, "object": self._streamed, "choices": [], "usage": usage}

    @property
    def _streamed(self) -> str:
        return "chat.completion.chunk" if self.chat else "text_completion"

    def _event(
        self, index: int, said: dict[str, Any], *, logprobs: Any = None, finish: str | None = None
    ) -> dict[str, Any]:
        choice = {"index": index, **said, "logprobs": logprobs, "finish_reason": finish}
        usage = {"usage": None} if self.streamed_usage else {}
        return {**self.common, "object": self._streamed, "choices": [choice], **usage}

    def _logprobs(self, tokens: Sequence[Token], start: int) -> dict[str, Any]:
        if self.chat:
            shown = [
                _shown(token.name, token.logprob)
                | {"top_logprobs": [_shown(*one) for one in token.likeliest.items()]}
                for token in tokens
            ]
            return {"content": shown, "refusal": None}
        return {
            "tokens": [token.name for token in tokens],
            "token_logprobs": [max(token.logprob, LEAST) for token in tokens],
            "top_logprobs": [_top(token) for token in tokens] if self.likeliest else None,
            "text_offset": [start + token.start for token in tokens],
        }


def _shown(name: str, logprob: float) -> dict[str, Any]:
    code = None if name.startswith("token_id:") else list(name.encode(errors="surrogatepass"))
    return {"token": name, "logprob": max(logprob, LEAST), "bytes": code}


def _top(token: Token) -> dict[str, float]:
    """Returns the likeliest tokens, and the written one where it is none of them."""
    return {
        name: max(logprob, LEAST) for name, logprob in {**token.likeliest, token.name: token.logprob}.items()
    }


def usage(writings: Sequence[Writing]) -> dict[str, Any]:
    """Returns the counts of OpenAI's protocol, and the statistics of all texts together."""
    texts = [writing.text.text for writing in writings if writing.text.text is not None]
    together = QueuedText(0, texts[0].request)
    together.counts = {name: sum(text.counts[name] for text in texts) for name in together.counts}
    together.seconds = max(text.seconds for text in texts)
    counts = {
        "prompt_tokens": sum(len(writing.tokens) for writing in writings if writing.first),
        "completion_tokens": sum(writing.choice.count for writing in writings),
    }
    return {**counts, "total_tokens": sum(counts.values()), "draftwood": together.statistics}


def as_json(content: Any) -> bytes:
    """Returns JSON in ASCII, which can hold a text with half of a surrogate pair too."""
    return json.dumps(content).encode()
