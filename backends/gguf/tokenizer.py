"""The tokenizer in a GGUF file, as a tokenizer of transformers."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizer
from transformers.tokenization_utils_base import BatchEncoding

from draftwood.backends.gguf.header import GgufHeader
from draftwood.backends.gguf.library import CONTROL, UNUSED, Weights, library

_NO_VOCABULARY = 0
"""llama.cpp's number of files without a tokenizer."""


class GgufTokenizer(PreTrainedTokenizer):
    """A tokenizer whose token ids and texts are llama.cpp's; transformers renders chat templates."""

    model_input_names = ["input_ids", "attention_mask"]  # noqa: RUF012 - transformers' own declaration

    def __init__(self, weights: Weights) -> None:
        """Read the vocabulary of `weights`, which need no more than that."""
        self._weights, lib = weights, library()
        vocabulary = weights.vocabulary
        numbers = range(weights.vocab_size)
        self._words = [_word(lib.llama_vocab_get_text(vocabulary, number)) for number in numbers]
        kinds = [lib.llama_vocab_get_attr(vocabulary, number) for number in numbers]
        # Words that only fill the vocabulary up are no tokens of the original tokenizer.
        self._numbers = {self._words[number]: number for number in numbers if not kinds[number] & UNUSED}
        self._control = {number for number in numbers if kinds[number] & CONTROL}
        template = lib.llama_model_chat_template(weights.handle, None)
        super().__init__(  # type: ignore[no-untyped-call]  # transformers has no types here
            bos_token=self._named(lib.llama_vocab_bos(vocabulary)),
            eos_token=self._named(lib.llama_vocab_eos(vocabulary)),
            pad_token=self._named(lib.llama_vocab_pad(vocabulary)),
            chat_template=_word(template) if template else None,
            clean_up_tokenization_spaces=False,
        )

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary."""
        return self._weights.vocab_size

    @property
    def all_special_tokens(self) -> list[str]:
        """Tokens that stand for no text."""
        return [self._words[number] for number in sorted(self._control)]

    def get_vocab(self) -> dict[str, int]:
        """Returns the numbers of all words, without those that only fill the vocabulary up."""
        return dict(self._numbers)

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        """Returns the text of words."""
        return self._text([self._convert_token_to_id(word) for word in tokens], special=True)

    def _encode_plus(  # type: ignore[override]
        self,
        text: Any,
        text_pair: Any = None,
        add_special_tokens: bool = True,
        **options: Any,
    ) -> BatchEncoding:
        if not isinstance(text, str):
            return super()._encode_plus(text, text_pair, add_special_tokens, **options)
        numbers = self._encoded(text, special=add_special_tokens)
        if not numbers:
            return BatchEncoding({"input_ids": [], "attention_mask": []})
        return super()._encode_plus(numbers, text_pair, False, **options)

    def tokenize(self, text: str, **options: Any) -> list[str]:  # type: ignore[override]
        """Returns the words of a text."""
        return [self._words[number] for number in self._encoded(text, special=False)]

    def _convert_token_to_id(self, token: str) -> int:
        # Words that only fill the vocabulary up have a number too.
        number = self._numbers.get(token)
        return self._words.index(token) if number is None else number

    def _convert_id_to_token(self, index: int) -> str:
        return self._words[index]

    def _decode(
        self,
        token_ids: int | list[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
        **options: Any,
    ) -> str:
        numbers = [token_ids] if isinstance(token_ids, int) else [int(number) for number in token_ids]
        if skip_special_tokens:
            numbers = [number for number in numbers if number not in self._control]
        return self._text(numbers, special=not skip_special_tokens)

    def _encoded(self, text: str, *, special: bool) -> list[int]:
        """Numbers of a text; `special` adds the tokens that the file wants around it."""
        data = text.encode()
        room = len(data) + 8
        while True:
            numbers = (ctypes.c_int32 * room)()
            count = library().llama_tokenize(
                self._weights.vocabulary, data, len(data), numbers, room, special, True
            )
            if count >= 0:
                return list(numbers[:count])
            room = -count

    def _text(self, numbers: Sequence[int], *, special: bool) -> str:
        """The text of tokens; bytes that are no whole character become the sign for that."""
        array = (ctypes.c_int32 * len(numbers))(*numbers)
        room = 16 * len(numbers) + 64
        while True:
            text = ctypes.create_string_buffer(room)
            count = library().llama_detokenize(
                self._weights.vocabulary, array, len(numbers), text, room, False, special
            )
            if count >= 0:
                return text.raw[:count].decode(errors="replace")
            room = -count

    def _named(self, number: int) -> str | None:
        return None if number < 0 else self._words[number]


def read_tokenizer(file: Path) -> GgufTokenizer | None:
    """Returns the tokenizer in a GGUF file, or None where it holds none.

    Raises:
        InvalidInput: a file that is missing or damaged, or llama-cpp-python is not installed.
        UnsupportedModel: llama.cpp does not read the file.
    """
    GgufHeader.of_file(file)
    weights = Weights.of_file(file, vocabulary_only=True)
    if library().llama_vocab_type(weights.vocabulary) == _NO_VOCABULARY:
        return None
    return GgufTokenizer(weights)


def _word(text: bytes) -> str:
    return text.decode(errors="replace")
