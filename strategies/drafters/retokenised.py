"""Texts of one tokenizer in the tokens of another one, for drafters that look text up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int

from draftwood.strategies.drafters.token_map import token_texts


def retokenised(
    texts: Iterable[Sequence[int] | Int[np.ndarray, " length"]], old: Any, new: Any
) -> Iterator[Int[np.ndarray, " length"]]:
    """Each of `texts`, tokens of the tokenizer `old`, as `new` would have encoded it, without empty ones.

    So an index or a cache of another model's texts works for this one: what is looked up and proposed are the
    target's own tokens, which must match exactly. Special tokens go to their like, or are left out.

    Source: string-level exact match, Timor et al. 2025 (arXiv 2502.05202), for texts known beforehand.
    """
    roles = {
        number: role
        for number, role in enumerate(token_texts(old, max(old.get_vocab().values()) + 1))
        if number in set(old.all_special_ids)
    }
    numbers = {text: n for n, text in enumerate(token_texts(new, max(new.get_vocab().values()) + 1))}
    for text in texts:
        encoded: list[int] = []
        part: list[int] = []
        for token in [*np.asarray(text, dtype=np.int64).tolist(), None]:
            if token is not None and token not in roles:
                part.append(token)
                continue
            words = old.decode(part, clean_up_tokenization_spaces=False)
            encoded += new(words, add_special_tokens=False, verbose=False)["input_ids"] if words else []
            part = []
            if token is not None and roles[token] in numbers:
                encoded.append(numbers[roles[token]])
        if encoded:
            yield np.array(encoded, dtype=np.int64)
