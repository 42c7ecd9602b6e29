"""Sorted suffixes of a token corpus: every occurrence of some tokens, by binary search."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Self

import attrs
import numpy as np
from jaxtyping import Int, UInt

from draftwood.base.errors import InvalidInput
from draftwood.strategies.drafters.array_folder import HEADER, ArrayFolder

_FOLDER = ArrayFolder(
    "draftwood-suffixes",
    1,
    "index",
    remedy="build it again with `draftwood index`",
    none="build one with `draftwood index`",
)
_ARRAYS = ("tokens", "suffixes")
_LARGEST = 2**32 - 1  # positions are stored as 32-bit numbers


@attrs.frozen(eq=False)
class SuffixIndex:
    """A corpus and the order of its suffixes; `open` maps it into memory instead of reading it.

    Every document is followed by the separator `vocab_size`, which no query can hold: nothing matches
    across the border of two documents, and nothing follows a document's last token.

    Attributes:
        tokens: the documents, each with its separator, `[n]` uint16 or uint32.
        suffixes: the positions in `tokens` in the order of the suffixes that start there, `[n]` uint32.
        vocab_size: tokens are below it.
        vocabulary: digest of the tokenizer's vocabulary, or None where no tokenizer is known.

    Source: Manber & Myers 1993, suffix arrays and prefix doubling.
    """

    tokens: UInt[np.ndarray, " n"]
    suffixes: UInt[np.ndarray, " n"]
    vocab_size: int
    vocabulary: str | None = None

    @classmethod
    def of(
        cls,
        documents: Iterable[Int[np.ndarray, " length"]],
        *,
        vocab_size: int,
        vocabulary: str | None = None,
    ) -> Self:
        """Index `documents`, each `[length]` integers in `[0, vocab_size)`; empty ones are left out.

        Takes about 50 bytes of memory a token, and O(n log n) for each doubling of the longest repeat.

        Raises:
            InvalidInput: there is no token at all, a token lies outside the vocabulary, or there are
                2**32 of them.
        """
        if not 1 <= vocab_size <= _LARGEST:
            raise InvalidInput(f"vocab_size is {vocab_size}; give an integer in [1, {_LARGEST}].")
        parts: list[np.ndarray] = []
        stored = np.min_scalar_type(max(vocab_size, 2**16 - 1))
        end = np.array([vocab_size], dtype=stored)
        for document in documents:
            tokens = np.asarray(document)
            if not tokens.size:
                continue
            if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
                raise InvalidInput(
                    f"A document is {tokens.dtype} of shape {list(tokens.shape)}; give a row of integers."
                )
            if tokens.min() < 0 or tokens.max() >= vocab_size:
                bad = int(tokens.min() if tokens.min() < 0 else tokens.max())
                raise InvalidInput(
                    f"A document holds token {bad}, outside the vocabulary of {vocab_size}; encode it with "
                    "the tokenizer that the index is for."
                )
            parts += [tokens.astype(stored), end]
        if not parts:
            raise InvalidInput("The corpus holds no token; give at least one document that is not empty.")
        corpus = np.concatenate(parts)
        if len(corpus) > _LARGEST:
            raise InvalidInput(f"The corpus holds {len(corpus)} tokens; give at most {_LARGEST}.")
        return cls(corpus, _sorted(corpus, vocab_size).astype(np.uint32), vocab_size, vocabulary)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """The index that `save` left in `folder`, mapped into memory; its files are read once, as a check.

        Raises:
            InvalidInput: there is none, it is of another version, or its files are not what was written.
        """
        arrays, header = _FOLDER.read(folder, _ARRAYS, ("tokens", "vocab_size"))
        tokens, suffixes = (arrays[name] for name in _ARRAYS)
        shapes = {tokens.shape, suffixes.shape}
        if shapes != {(header["tokens"],)} or {tokens.dtype.kind, suffixes.dtype.kind} != {"u"}:
            raise _FOLDER.corrupt(folder, f"{HEADER} does not fit the other files")
        index = cls(tokens, suffixes, header["vocab_size"], header["vocabulary"])
        if not len(tokens) or tokens[-1] != index.vocab_size or not index.all_suffixes[1]:
            raise _FOLDER.corrupt(folder, f"{HEADER} does not fit the other files")
        return index

    def save(self, folder: str | os.PathLike[str]) -> int:
        """Write the index to `folder`, made if need be; returns the bytes written.

        A process that has an older index of this folder open keeps that one.

        Raises:
            InvalidInput: `folder` cannot be written, or holds something other than an index.
        """
        header = {
            "tokens": len(self.tokens),
            "vocab_size": self.vocab_size,
            "vocabulary": self.vocabulary,
        }
        return _FOLDER.write(folder, {"tokens": self.tokens, "suffixes": self.suffixes}, header)

    @staticmethod
    def check_free(folder: str | os.PathLike[str]) -> None:
        """Raise `InvalidInput` unless an index can be saved to `folder` without harm to anything else."""
        _FOLDER.check_free(folder)

    def documents(self) -> list[UInt[np.ndarray, " length"]]:
        """The documents, in order, without separators."""
        ends = np.flatnonzero(self.tokens == self.vocab_size)
        return [part[part != self.vocab_size] for part in np.split(self.tokens, ends[:-1])]

    @property
    def all_suffixes(self) -> tuple[int, int]:
        """The range of all suffixes that start with a token."""
        everything = np.array([0]), np.array([len(self.tokens)])
        return 0, int(self._first(*everything, depth=np.array([0]), token=np.array([self.vocab_size]))[0])

    def narrow(
        self,
        low: Int[np.ndarray, " *k"],
        high: Int[np.ndarray, " *k"],
        *,
        depth: Int[np.ndarray, " *k"],
        token: Int[np.ndarray, " *k"],
    ) -> tuple[Int[np.ndarray, " *k"], Int[np.ndarray, " *k"]]:
        """Narrows each range `low:high` of `suffixes` to what goes on with `token` and one more token.

        The suffixes of a range share their first `depth` tokens, with a token after each of them;
        the suffixes of the answer share `depth + 1`. All arguments int64, of one shape.
        """
        both = np.stack([token, token + 1])
        first, last = self._first(*np.broadcast_arrays(low, high, both)[:2], depth=depth, token=both)
        behind = self._first(first, last, depth=depth + 1, token=np.full_like(token, self.vocab_size))
        return first, behind

    def followers(
        self, low: int, high: int, depth: int, *, examples: int
    ) -> tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " tokens"]]:
        """Returns the tokens at `depth` in the suffixes `low:high`, ascending, and how often each occurs.

        Of more than `examples` suffixes it looks at that many, evenly spread; as they are sorted, a token
        with a share of at least one in `examples` is always among the answers.
        """
        count = min(high - low, examples)
        chosen = low + np.arange(count) * (high - low) // count
        tokens, counts = np.unique(
            self.tokens[self.suffixes[chosen].astype(np.int64) + depth], return_counts=True
        )
        return tokens.astype(np.int64), counts

    def _first(
        self, low: np.ndarray, high: np.ndarray, *, depth: np.ndarray, token: np.ndarray
    ) -> np.ndarray:
        """The first index in each range whose suffix has `token` or a later one at `depth`, else `high`."""
        low, high = low.copy(), high.copy()
        last = len(self.tokens) - 1
        while (open_ := low < high).any():
            middle = (low + high) // 2
            # Where the search is over, the index may lie outside; what is read there is not used.
            at = self.suffixes[np.minimum(middle, last)].astype(np.int64) + depth
            earlier = self.tokens[np.minimum(at, last)] < token
            low = np.where(open_ & earlier, middle + 1, low)
            high = np.where(open_ & ~earlier, middle, high)
        return low


def _sorted(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """The positions `[n]` int64 in the order of the suffixes that start there."""
    n, bits = len(tokens), (vocab_size + 1).bit_length()
    width = max(62 // bits, 1)  # tokens that one 64-bit key holds; 0 follows the corpus
    keys = np.zeros(n, dtype=np.int64)
    for ahead in range(width):
        keys <<= bits
        keys[: max(n - ahead, 0)] |= tokens[ahead:].astype(np.int64) + 1
    while True:
        order = np.argsort(keys)
        keys = keys[order]
        ranks = np.empty(n, dtype=np.int64)
        ranks[order] = np.concatenate([[0], np.cumsum(keys[1:] != keys[:-1])])
        if ranks[order[-1]] == n - 1:
            return order
        keys = ranks * (n + 1)
        keys[: n - width] += ranks[width:] + 1
        width *= 2
