"""Limits of a prompt's length: the target's positions, and the text that its tokens can hold."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from draftwood.apps.models import by_name as models
from draftwood.base.errors import InvalidInput

_SHORTER = 4
"""How many times shorter a normaliser may make a text in bytes; composing characters makes it 3 at most."""
_KEEPS_LENGTH = {"NFC", "NFD", "NFKD", "Prepend", "Replace", "ByteLevel"}
"""Normalisers that take nothing out of a text, with the exception of `Replace` by less."""


@attrs.frozen
class PromptLimit:
    """The longest prompts of one target.

    Attributes:
        positions: tokens for which the target was made; None: any number.
        text_bytes: bytes of UTF-8 beyond which every text has more tokens than that; None where the
            tokenizer does not say what a token can stand for.
    """

    positions: int | None
    text_bytes: int | None

    @classmethod
    def of(cls, loaded: models.Loaded) -> PromptLimit:
        positions = models.context(loaded.target)
        longest = None if positions is None else longest_token(loaded.tokenizer)
        return cls(
            positions, None if longest is None or positions is None else positions * longest * _SHORTER
        )

    def check_text(self, text: str) -> None:
        """Raise `InvalidInput` if the length of `text` already shows that it has too many tokens."""
        if self.text_bytes is not None and len(text) > self.text_bytes // 4:
            size = len(text.encode("utf-8", "replace"))
            if size > self.text_bytes:
                raise InvalidInput(
                    f"The prompt has {size} bytes, and the target's {self.positions} positions hold at most "
                    f"{self.text_bytes} of any text; shorten it."
                )

    def check_tokens(self, tokens: Sequence[int]) -> None:
        """Raise `InvalidInput` where there are too many."""
        if self.positions is not None and len(tokens) >= self.positions:
            raise InvalidInput(
                f"The prompt has {len(tokens)} tokens, and the target's context holds {self.positions}; "
                "shorten it."
            )


def longest_token(tokenizer: Any) -> int | None:
    """The most bytes of a text that one token can stand for; None where it may be any number.

    Tokenizers that are byte-level or fall back to bytes lose nothing of a text: each token stands for what
    its own text says. Others replace what they do not know, however long it is, by one token.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return None
    known = json.loads(backend.to_str())
    model, added = known["model"], known["added_tokens"]
    parts = [part for name in ("pre_tokenizer", "normalizer", "decoder") for part in _parts(known.get(name))]
    by_bytes = any(part["type"] == "ByteLevel" for part in parts)
    lossless = model.get("type") == "BPE" and (by_bytes or model.get("byte_fallback"))
    keeps = all(_keeps_length(part) for part in _parts(known.get("normalizer")))
    strips = any(one.get("lstrip") or one.get("rstrip") for one in added)
    if not lossless or not keeps or strips or known.get("truncation") or _drops(known.get("pre_tokenizer")):
        return None
    # On the byte level a character of a token's name is a byte of the text.
    length = len if by_bytes else lambda word: len(word.encode())
    own = max(map(length, model["vocab"]), default=0)
    return max([own, *(len(one["content"].encode()) for one in added)], default=None) or None


def _parts(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """A part of a tokenizer, or the parts that it is a sequence of."""
    if part is None:
        return []
    inner = next((part[name] for name in ("pretokenizers", "normalizers", "decoders") if name in part), None)
    return [part] if inner is None else [one for some in inner for one in _parts(some)]


def _keeps_length(part: Mapping[str, Any]) -> bool:
    if part["type"] == "Replace":  # such as a space by a character of more bytes
        pattern = part["pattern"].get("String")
        return pattern is not None and len(part["content"]) >= len(pattern)
    return part["type"] in _KEEPS_LENGTH


def _drops(part: Mapping[str, Any] | None) -> bool:
    """Whether a part before the tokens takes something out, such as the spaces between words."""
    return any(
        one.get("behavior") == "Removed"
        or one["type"] in ("Whitespace", "WhitespaceSplit", "BertPreTokenizer")
        for one in _parts(part)
    )
