"""Sorted suffixes of a token corpus: every occurrence of some tokens, by binary search."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import attrs
import numpy as np
from jaxtyping import Int, UInt

from draftwood.errors import InvalidInput
from draftwood.json_text import parse_json

_HEADER, _TOKENS, _SUFFIXES = "index.json", "tokens.npy", "suffixes.npy"
_FORMAT, _VERSION = "draftwood-suffixes", 1
_LARGEST = 2**32 - 1  # positions are stored as 32-bit numbers


@attrs.frozen(eq=False)
class SuffixIndex:
    """A corpus and the order of its suffixes; `open` maps it into memory instead of reading it.

    Behind every document stands the separator `vocab_size`, which no query can hold: nothing matches
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
            raise InvalidInput(f"The corpus holds {len(corpus)} tokens; an index takes {_LARGEST} at most.")
        return cls(corpus, _sorted(corpus, vocab_size).astype(np.uint32), vocab_size, vocabulary)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Self:
        """The index that `save` left in `folder`, mapped into memory; its files are read once, as a check.

        Raises:
            InvalidInput: there is none, it is of another version, or its files are not what was written.
        """
        path = Path(folder)
        header = _header(path)
        for name, checksum in header["checksums"].items():
            if _checksum(path / name) != checksum:
                raise _corrupt(path, f"{name} is not what was written")
        try:
            tokens, suffixes = (np.load(path / name, mmap_mode="r") for name in (_TOKENS, _SUFFIXES))
        except (OSError, ValueError, EOFError) as error:
            raise _corrupt(path, str(error).splitlines()[0]) from error
        shapes = {tokens.shape, suffixes.shape}
        if shapes != {(header["tokens"],)} or {tokens.dtype.kind, suffixes.dtype.kind} != {"u"}:
            raise _corrupt(path, f"{_HEADER} does not fit the other files")
        # A plain view of the map: numpy's own class for maps is slow to index.
        index = cls(np.asarray(tokens), np.asarray(suffixes), header["vocab_size"], header["vocabulary"])
        if not len(tokens) or tokens[-1] != index.vocab_size or not index.all_suffixes[1]:
            raise _corrupt(path, f"{_HEADER} does not fit the other files")
        return index

    def save(self, folder: str | os.PathLike[str]) -> int:
        """Write the index to `folder`, made if need be; returns the bytes written.

        A process that has an older index of this folder open keeps that one.

        Raises:
            InvalidInput: `folder` cannot be written, or holds something other than an index.
        """
        path = Path(folder)
        self.check_free(path)
        try:
            path.mkdir(parents=True, exist_ok=True)
            for name, values in ((_TOKENS, self.tokens), (_SUFFIXES, self.suffixes)):
                with _temporary(path / name).open("wb") as file:
                    np.save(file, values, allow_pickle=False)
            header = {
                "format": _FORMAT,
                "version": _VERSION,
                "tokens": len(self.tokens),
                "vocab_size": self.vocab_size,
                "vocabulary": self.vocabulary,
                "checksums": {name: _checksum(_temporary(path / name)) for name in (_TOKENS, _SUFFIXES)},
            }
            _temporary(path / _HEADER).write_text(json.dumps(header, indent=1), encoding="utf-8")
            for name in (_TOKENS, _SUFFIXES, _HEADER):
                _temporary(path / name).replace(path / name)
            return sum((path / name).stat().st_size for name in (_TOKENS, _SUFFIXES, _HEADER))
        except OSError as error:
            raise InvalidInput(
                f"The index cannot be written to {str(path)!r}: {error.strerror}; name another folder."
            ) from error

    @staticmethod
    def check_free(folder: str | os.PathLike[str]) -> None:
        """Raise `InvalidInput` unless an index can be saved to `folder` without harm to anything else."""
        path = Path(folder)
        if path.is_dir() and any(path.iterdir()) and not (path / _HEADER).exists():
            problem = "holds other files"
        elif path.exists() and not path.is_dir():
            problem = "is a file"
        else:
            return
        raise InvalidInput(f"{str(path)!r} {problem}; name a new folder for the index.")

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
        """Of each range `low:high` of `suffixes` the part that goes on with `token` and then another token.

        The suffixes of a range share their first `depth` tokens, with a token behind each of them;
        those of the answer share `depth + 1`. All arguments int64, of one shape.
        """
        both = np.stack([token, token + 1])
        first, last = self._first(*np.broadcast_arrays(low, high, both)[:2], depth=depth, token=both)
        behind = self._first(first, last, depth=depth + 1, token=np.full_like(token, self.vocab_size))
        return first, behind

    def followers(
        self, low: int, high: int, depth: int, *, examples: int
    ) -> tuple[Int[np.ndarray, " tokens"], Int[np.ndarray, " tokens"]]:
        """The tokens at `depth` in the suffixes `low:high`, ascending, and how often each stands there.

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
    width = max(62 // bits, 1)  # tokens that one 64-bit key holds; 0 stands behind the corpus
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


def _header(folder: Path) -> Mapping[str, Any]:
    """What `index.json` says, every field of the right type."""
    try:
        header = parse_json((folder / _HEADER).read_bytes())
    except OSError as error:
        raise InvalidInput(
            f"There is no index in {str(folder)!r}; build one with `draftwood index`."
        ) from error
    except ValueError as error:
        raise _corrupt(folder, f"{_HEADER}: {error}") from error
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise _corrupt(folder, f"{_HEADER} does not describe one")
    if header.get("version") != _VERSION:
        raise InvalidInput(
            f"The index in {str(folder)!r} is of version {header.get('version')!r:.40}, and what can be read "
            f"is version {_VERSION}; build it again with `draftwood index`."
        )
    sums = header.get("checksums")
    sizes = [header.get("tokens"), header.get("vocab_size")]
    if (
        not all(type(size) is int and size > 0 for size in sizes)
        or not isinstance(header.get("vocabulary", 0), str | None)
        or not isinstance(sums, dict)
        or set(sums) != {_TOKENS, _SUFFIXES}
    ):
        raise _corrupt(folder, f"{_HEADER} lacks a field or holds a wrong one")
    return header


def _checksum(file: Path) -> int:
    total = 0
    try:
        with file.open("rb") as content:
            while part := content.read(2**20):
                total = zlib.crc32(part, total)
    except FileNotFoundError:
        raise _corrupt(file.parent, f"{file.name} is missing") from None
    return total


def _temporary(file: Path) -> Path:
    """Where a file is written before it replaces the old one."""
    return file.with_name(f"{file.name}.new")


def _corrupt(folder: Path, problem: str) -> InvalidInput:
    return InvalidInput(
        f"The index in {str(folder)!r} is corrupt ({problem}); build it again with `draftwood index`."
    )
