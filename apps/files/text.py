"""Text from tokens as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs

_UNFINISHED = "\N{REPLACEMENT CHARACTER}"


@attrs.define(eq=False)
class IncrementalText:
    """Turns a growing list of tokens into text without ever showing half a character.

    A byte-level tokenizer may spread one character over several tokens, and some tokenizers write a
    word differently at the start of a text; so new tokens are decoded after the ones shown last, and
    kept back until they end in a whole character.

    Attributes:
        tokenizer: any tokenizer of transformers.
        tokens: all tokens so far.
    """

    tokenizer: Any
    tokens: list[int] = attrs.field(factory=list)
    _context: int = 0
    _shown: int = 0

    def add(self, tokens: Sequence[int]) -> str:
        """The text that `tokens` make final."""
        self.tokens.extend(tokens)
        new = self._new()
        if new.endswith(_UNFINISHED):
            return ""
        self._advance()
        return new

    def rest(self) -> str:
        """Returns the part that was kept back, at the end of the text."""
        new = self._new()
        self._advance()
        return new

    def _new(self) -> str:
        before = self._decode(self.tokens[self._context : self._shown])
        return self._decode(self.tokens[self._context :])[len(before) :]

    def _advance(self) -> None:
        self._context, self._shown = self._shown, len(self.tokens)

    def _decode(self, tokens: list[int]) -> str:
        return decode(self.tokenizer, tokens)


def decode(tokenizer: Any, tokens: Sequence[int]) -> str:
    """The text of `tokens` without special ones, with unchanged spaces."""
    text: str = tokenizer.decode(list(tokens), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text


@attrs.define(eq=False)
class Streamer:
    """A transformers streamer that hands new text to `write`, the prompt left out."""

    text: IncrementalText
    write: Callable[[str], object]
    _prompt: bool = True

    def put(self, value: Any) -> None:
        """Tokens, `[n]` or `[1, n]`; the first call is the prompt."""
        if not self._prompt:
            self.write(self.text.add(value.flatten().tolist()))
        self._prompt = False

    def end(self) -> None:
        self.write(self.text.rest())
