"""The tokens that two tokenizers share, and how one spells the other's tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Self

import attrs
import numpy as np
from jaxtyping import Int

from draftwood.base.errors import IncompatibleModels, InvalidInput

Text = bytes | str | None
"""A token's bytes; the name of a special one, such as `"eos"`; or None for a number without a token."""

_ROLES = ("eos", "bos", "pad", "unk")


@attrs.frozen(eq=False)
class TokenMap:
    """A map from a target's tokens to a draft's vocabulary.

    Attributes:
        to_draft: the draft's number of every token of the target, -1 where it has none, `[target]` int64.
        spellings: every token of the target as one or more of the draft's; one that has no text at all, such
            as padding of the vocabulary, as the draft's end of text, or else its token 0.
        draft_size: tokens of the draft.
    """

    to_draft: Int[np.ndarray, " target"] = attrs.field(repr=False)
    spellings: tuple[tuple[int, ...], ...] = attrs.field(repr=False)
    draft_size: int

    @classmethod
    def between(cls, target: Any, draft: Any, *, target_size: int, draft_size: int) -> Self:
        """The map of two tokenizers of transformers, of models whose logits have these sizes.

        Raises:
            IncompatibleModels: they have no token in common.
        """
        return cls.of(token_texts(target, target_size), token_texts(draft, draft_size))

    @classmethod
    def of(cls, target: Sequence[Text], draft: Sequence[Text]) -> Self:
        """The map of two vocabularies, each token's text by its number.

        Raises:
            IncompatibleModels: they have no token in common.
        """
        numbers: dict[bytes | str, int] = {}
        for number, text in enumerate(draft):
            if text:
                numbers.setdefault(text, number)
        to_draft = np.array([numbers.get(text, -1) if text else -1 for text in target], dtype=np.int64)
        if not (to_draft >= 0).any():
            raise IncompatibleModels(
                f"The {len(target)} tokens of the target and the {len(draft)} of the draft have no text in "
                "common; choose another draft."
            )
        known = {text: number for text, number in numbers.items() if isinstance(text, bytes)}
        unknown = (numbers.get("eos", 0),)
        longest = max(map(len, known), default=0)
        spellings = tuple(
            (number,) if number >= 0 else _spelled(text, known, longest) or unknown
            for text, number in zip(target, to_draft.tolist(), strict=True)
        )
        return cls(to_draft, spellings, len(draft))

    @property
    def shared(self) -> int:
        """Tokens of the target that the draft has too."""
        return int((self.to_draft >= 0).sum())

    @property
    def overlap(self) -> float:
        """The share of the target's tokens that the draft has too."""
        return self.shared / len(self.to_draft)

    def described(self, text: Sequence[int]) -> str:
        """Returns a sentence on which tokens are shared, and what to expect after a text of the target."""
        return (
            f"The draft has another tokenizer and proposes {self.shared} of the target's "
            f"{len(self.to_draft)} tokens ({self.overlap:.1%}); of the prompt they are "
            f"{self.coverage(text):.1%}, about the most that can be accepted."
        )

    def coverage(self, tokens: Sequence[int]) -> float:
        """The share of a text's tokens that the draft has too: about the most that can be accepted there."""
        if not len(tokens):
            raise InvalidInput("The text has no token; give one such as the target writes.")
        return float((self.to_draft[np.asarray(tokens)] >= 0).mean())

    def spelled(self, tokens: Sequence[int]) -> list[int]:
        """A text of the target in tokens of the draft, token by token."""
        return [part for token in tokens for part in self.spellings[token]]


def token_texts(tokenizer: Any, size: int) -> list[Text]:
    """The text of every token of a tokenizer of transformers, by its number.

    Bytes are the text's bytes, whether the tokenizer writes them by GPT-2's alphabet or with U+2581 for
    spaces and `<0x0A>` for single bytes. Special tokens are known by what they do, others that were added by
    their content.
    """
    texts: list[Text] = [None] * size
    vocabulary = tokenizer.get_vocab()
    added = set(tokenizer.get_added_vocab()) | set(tokenizer.all_special_tokens)
    plain = [token for token in vocabulary if token not in added]
    by_alphabet = all(character in _ALPHABET for token in plain for character in token)
    for token, number in vocabulary.items():
        if number >= size:
            continue
        if token in added:
            texts[number] = token
        elif by_alphabet:
            texts[number] = bytes(_ALPHABET[character] for character in token)
        else:
            texts[number] = _sentencepiece(token)
    for role in reversed(_ROLES):
        number = getattr(tokenizer, f"{role}_token_id")
        if number is not None and number < size:
            texts[number] = role
    return texts


def _sentencepiece(token: str) -> bytes:
    if byte := re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", token):
        return bytes.fromhex(byte[1])
    return token.replace("\u2581", " ").encode()


def _spelled(text: Text, known: dict[bytes, int], longest: int) -> tuple[int, ...]:
    """`text` in the longest tokens from its beginning on; empty where some byte has none."""
    left = text.encode() if isinstance(text, str) else text or b""
    parts: list[int] = []
    while left:
        length = next((n for n in range(min(longest, len(left)), 0, -1) if left[:n] in known), 0)
        if not length:
            return ()
        parts.append(known[left[:length]])
        left = left[length:]
    return tuple(parts)


def _alphabet() -> dict[str, int]:
    """GPT-2's character for every byte: its own where that can be seen, else one from U+0100 on."""
    seen = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {chr(256 + n): byte for n, byte in enumerate(unseen)}


_ALPHABET = _alphabet()
