"""The answers to OpenAI's batch requests, as its batch endpoint writes them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from time import time
from typing import Any

import attrs

from draftwood import QueuedText
from draftwood.apps.files.text import IncrementalText, decode
from draftwood.apps.models.asked import PromptLine, Row

_LENGTH = ("length", "context")
_LEAST = -9999.0  # what OpenAI writes of a token that cannot come


@attrs.frozen(eq=False)
class Written:
    """One text of a line, and what was asked of it."""

    row: Row
    text: QueuedText


def answer(
    line: PromptLine, texts: Sequence[Written], tokenizer: Any, *, stops: Sequence[str] = ()
) -> dict[str, Any]:
    """The answer to a request whose texts have ended; `stops` end texts besides their own."""
    assert line.request is not None
    chat = line.request.kind == "chat"
    counts = {
        "prompt_tokens": sum(len(one.text.prompt) for one in texts[:: line.request.choices]),
        "completion_tokens": sum(len(one.text.tokens) for one in texts),
    }
    body = {
        "id": f"{'chatcmpl' if chat else 'cmpl'}-{_identifier(line)}",
        "object": "chat.completion" if chat else "text_completion",
        "created": int(time()),
        "model": line.request.model,
        "choices": [
            _choice(index, one, tokenizer, stops=(*stops, *one.row.settings.stop), chat=chat)
            for index, one in enumerate(texts)
        ],
        "usage": {**counts, "total_tokens": sum(counts.values())},
    }
    return _line(line, 200, body)


def refusal(line: PromptLine, reason: str, *, status: int) -> dict[str, Any]:
    """The answer to a request that cannot be written."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return _line(line, status, {"error": {"message": reason, "type": kind, "param": None, "code": None}})


def _line(line: PromptLine, status: int, body: Mapping[str, Any]) -> dict[str, Any]:
    assert line.request is not None
    name = _identifier(line)
    return {
        "id": f"batch_req_{name}",
        "custom_id": line.request.custom_id,
        "response": {"status_code": status, "request_id": f"req_{name}", "body": body},
        "error": None,
    }


def _identifier(line: PromptLine) -> str:
    """A name that is the same whenever a run comes to the same request."""
    words = json.dumps(
        [line.number, line.request and line.request.custom_id, [row.seed for row in line.rows]]
    )
    return hashlib.sha256(words.encode()).hexdigest()[:24]


def _choice(
    index: int, written: Written, tokenizer: Any, *, stops: Sequence[str], chat: bool
) -> dict[str, Any]:
    text, settings = written.text, written.row.settings
    whole = decode(tokenizer, text.tokens)
    # In this protocol a string that ends a text is no part of it.
    shown = min((whole.split(stop, 1)[0] for stop in stops), key=len, default=whole)
    said: dict[str, Any] = {"text": shown}
    if chat:
        said = {"message": {"role": "assistant", "content": shown, "refusal": None}}
    told = None
    if settings.logprobs is not None:
        told = (_chat_logprobs if chat else _logprobs)(text, tokenizer, shown)
    finish = "length" if text.finished in _LENGTH else "stop"
    return {"index": index, **said, "logprobs": told, "finish_reason": finish}


def _pieces(text: QueuedText, tokenizer: Any, shown: str) -> list[tuple[str, int]]:
    """Returns the piece of the shown text that each token adds, and where the piece begins."""
    written, pieces, begins = IncrementalText(tokenizer), list[tuple[str, int]](), 0
    for token in text.tokens:
        if begins >= len(shown):
            break
        piece = written.add([token])
        pieces.append((piece, begins))
        begins += len(piece)
    return pieces


def _logprobs(text: QueuedText, tokenizer: Any, shown: str) -> dict[str, Any]:
    pieces = _pieces(text, tokenizer, shown)
    told = _told(text)[: len(pieces)]
    return {
        "tokens": [tokenizer.decode([token]) for token, _, _ in told],
        "token_logprobs": [logprob for _, logprob, _ in told],
        "top_logprobs": [
            {tokenizer.decode([token]): logprob for token, logprob in likely} for _, _, likely in told
        ],
        "text_offset": [begins for _, begins in pieces],
    }


def _chat_logprobs(text: QueuedText, tokenizer: Any, shown: str) -> dict[str, Any]:
    told = _told(text)[: len(_pieces(text, tokenizer, shown))]
    content = [
        {**_token(tokenizer, token, logprob), "top_logprobs": [_token(tokenizer, *one) for one in likely]}
        for token, logprob, likely in told
    ]
    return {"content": content, "refusal": None}


def _told(text: QueuedText) -> list[tuple[int, float, list[tuple[int, float]]]]:
    """Every token, its log-probability, and the likeliest tokens with theirs; JSON has no infinity."""
    likeliest = text.top_logprobs or [[] for _ in text.tokens]
    return [
        (token, max(logprob, _LEAST), [(other, max(one, _LEAST)) for other, one in likely])
        for token, logprob, likely in zip(text.tokens, text.logprobs, likeliest, strict=True)
    ]


def _token(tokenizer: Any, token: int, logprob: float) -> dict[str, Any]:
    word = tokenizer.decode([token])
    return {"token": word, "logprob": logprob, "bytes": list(word.encode())}
