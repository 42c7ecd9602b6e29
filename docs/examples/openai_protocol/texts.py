"""The text of one choice as its tokens come: whole characters, up to a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from draftwood.apps.files.text import IncrementalText

FINISH = {"eos": "stop", "criteria": "stop", "length": "length", "context": "length"}
"""OpenAI's word for why a row has ended."""

Likely = Sequence[tuple[int, float]]


@attrs.define(eq=False)
class Stops:
    """A search for the first of several strings in a text that comes in pieces.

    The one that is complete first counts, and of several that end at the same character the longest. So
    nothing depends on where the pieces were cut. What may still become a part of one is kept back.
    """

    strings: Sequence[str]
    _kept: str = ""

    def add(self, piece: str) -> tuple[str, bool]:
        """Returns the text that is certain now, and whether a stop string follows it."""
        text = self._kept + piece
        places = [(at + len(stop), at) for stop in self.strings if (at := text.find(stop)) >= 0]
        if places:
            self._kept = ""
            return text[: min(places)[1]], True
        kept = max((_overlap(text, stop) for stop in self.strings), default=0)
        self._kept = text[len(text) - kept :]
        return text[: len(text) - kept], False

    def rest(self) -> str:
        """Returns the text that was kept back, at the end."""
        kept, self._kept = self._kept, ""
        return kept


def _overlap(text: str, stop: str) -> int:
    """Returns how many characters at the end of `text` are a beginning of `stop`, not all of it."""
    return next(n for n in range(min(len(text), len(stop) - 1), -1, -1) if text.endswith(stop[:n]))


@attrs.frozen
class Token:
    """A written token.

    Attributes:
        start: characters of the text before it.
        name: its characters; `token_id:7` where they are no whole ones, or another in its place has the same.
        likeliest: log-probabilities of the likeliest tokens at its place, by name, the likeliest first.
    """

    start: int
    name: str
    logprob: float
    likeliest: dict[str, float]


@attrs.frozen
class Piece:
    """A part of a choice that is certain: its text, and the tokens that begin in it."""

    text: str
    tokens: Sequence[Token]


@attrs.define(eq=False)
class Choice:
    """One text of an answer, while it is written.

    Attributes:
        tokenizer: of the target.
        stops: strings at which it ends; they are not part of it.
        likeliest: how many likely tokens are named at each place; None: no log-probabilities.
        count: tokens that were written for it, with the tokens of a stop string.
        finish: why it ended, in OpenAI's words; None before.
    """

    tokenizer: Any
    stops: Sequence[str]
    likeliest: int | None
    count: int = attrs.field(default=0, init=False)
    finish: str | None = attrs.field(default=None, init=False)
    _decoding: IncrementalText = attrs.field(init=False)
    _searching: Stops = attrs.field(init=False)
    _decoded: int = attrs.field(default=0, init=False)  # characters
    _certain: int = attrs.field(default=0, init=False)  # characters
    _tokens: list[Token] = attrs.field(factory=list, init=False)  # that begin where nothing is certain yet

    def __attrs_post_init__(self) -> None:
        self._decoding, self._searching = IncrementalText(self.tokenizer), Stops(self.stops)

    def take(self, tokens: Sequence[int], logprobs: Sequence[float], likeliest: Sequence[Likely]) -> Piece:
        """Returns the piece that `tokens` make certain.

        Args:
            tokens: the next ones. Those that follow a stop string are left out.
            logprobs, likeliest: of each of them; empty where none were asked for.
        """
        text = ""
        for position, token in enumerate(tokens):
            if self.likeliest is not None:
                others = likeliest[position] if self.likeliest else ()
                self._tokens.append(self._token(token, logprobs[position], others))
            self.count += 1
            text += self._search(self._decoding.add([token]))
            if self.finish is not None:
                break
        return self._piece(text)

    def end(self, finished: str) -> Piece:
        """Returns the piece that was kept back, when the row has ended for the reason `finished`."""
        if finished == "eos" and self._tokens:
            self._tokens.pop()  # it is no part of the text
        text = self._search(self._decoding.rest())
        if self.finish is not None:
            return self._piece(text)
        self.finish = FINISH[finished]
        piece = self._piece(text + self._searching.rest())
        return Piece(piece.text, [*piece.tokens, *self._tokens])

    def _search(self, piece: str) -> str:
        self._decoded += len(piece)
        text, found = self._searching.add(piece)
        if found:
            self.finish = "stop"
        return text

    def _piece(self, text: str) -> Piece:
        self._certain += len(text)
        begun = sum(token.start < self._certain for token in self._tokens)
        tokens, self._tokens = self._tokens[:begun], self._tokens[begun:]
        return Piece(text, tokens)

    def _token(self, token: int, logprob: float, likeliest: Likely) -> Token:
        name, named = self._name(token), dict[str, float]()
        for other, its_logprob in likeliest:
            text = name if other == token else self._name(other)
            if other != token and (text == name or text in named):
                text = f"token_id:{other}"
            named[text] = its_logprob
        return Token(self._decoded, name, logprob, named)

    def _name(self, token: int) -> str:
        """Returns the characters that `token` adds to the text, or its number."""
        before = self._decoding.tokens[-1:]
        text = self._decode([*before, token])[len(self._decode(before)) :]
        return text if text and "\N{REPLACEMENT CHARACTER}" not in text else f"token_id:{token}"

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(tokens), clean_up_tokenization_spaces=False)
        return text
