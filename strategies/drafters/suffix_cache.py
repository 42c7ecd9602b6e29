"""The last tokens of many growing texts, and the places where some tokens occur in them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from hashlib import blake2b
from typing import Self

import attrs
import numpy as np
from jaxtyping import Int

from draftwood.base.errors import InvalidInput
from draftwood.base.validators import at_least
from draftwood.strategies.drafters.array_folder import ArrayFolder

_FOLDER = ArrayFolder(
    "draftwood-cache", 1, "cache", remedy="begin a new one", none="save one there with SuffixCache.save"
)
_ARRAYS = ("tokens", "before", "prompts")
_KEYS = (8, 4, 2, 1)
"""Of how many tokens the n-grams are by which a text is looked up; the longest that is known comes first."""

_HEADS = 2**18
"""N-grams of a length that are told apart at first sight, at most; others share a place, and are compared."""


@attrs.define(eq=False)
class SuffixCache:
    """The last `capacity` tokens of any number of texts, which grow side by side.

    Every token has a position, counted from the first one that was ever added, and knows the one before it.
    So texts may grow in any order, and texts with one prompt may share it. The newest token takes the place
    of the oldest. For every n-gram of 1, 2, 4 and 8 tokens the positions at which it ends form a chain, from
    the last one back, as in compressors of the LZ77 family. A token takes about 60 bytes.

    One thread at a time may use it.

    Attributes:
        vocab_size: tokens are below it.
        capacity: tokens that are kept.
        vocabulary: digest of the tokenizer's vocabulary, or None where no tokenizer is known.

    Source: draftwood. Its purpose is SuffixDecoding's (Oliaro et al. 2024, arXiv 2411.04975), which keeps
    suffix trees.
    """

    vocab_size: int = attrs.field(validator=at_least(1))
    capacity: int = attrs.field(default=2**20, validator=at_least(1), kw_only=True)
    vocabulary: str | None = attrs.field(default=None, kw_only=True)
    _count: int = attrs.field(default=0, init=False)  # positions that were ever taken
    # By position modulo capacity; they grow to it.
    _tokens: Int[np.ndarray, " size"] = attrs.field(init=False, repr=False)
    _before: Int[np.ndarray, " size"] = attrs.field(init=False, repr=False)  # positions; -1: a text begins
    _behind: Int[np.ndarray, " size"] = attrs.field(init=False, repr=False)  # the same; -1: none yet
    _chains: Int[np.ndarray, "keys size"] = attrs.field(init=False, repr=False)  # the same; -1: it ends
    # One more than the last position of an n-gram by its hash, 0 where there is none.
    _heads: Int[np.ndarray, "keys heads"] = attrs.field(init=False, repr=False)
    # First and last position of every prompt by its digest, in the order in which they were added.
    _prompts: dict[bytes, tuple[int, int]] = attrs.field(factory=dict, init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        size = min(self.capacity, 1024)
        self._tokens = np.zeros(size, dtype=np.int32 if self.vocab_size < 2**31 else np.int64)
        self._before, self._behind = (np.zeros(size, dtype=np.int64) for _ in range(2))
        self._chains = np.zeros((len(_KEYS), size), dtype=np.int64)
        heads = min(2 * self.capacity, _HEADS)
        self._heads = np.zeros((len(_KEYS), heads), dtype=np.int64)

    def __len__(self) -> int:
        """Tokens that are kept."""
        return min(self._count, self.capacity)

    @property
    def _floor(self) -> int:
        """The oldest position that is kept."""
        return max(self._count - self.capacity, 0)

    def clear(self) -> None:
        """Forget all texts."""
        self._count = 0
        self._heads[:] = 0
        self._prompts.clear()

    def begin(self, prompt: Sequence[int]) -> int:
        """Begin a text with `prompt`, which is stored once for all texts that begin with just this one.

        Returns:
            The position of its last token, for `append`; -1 if it has none.
        """
        digest = blake2b(np.array(prompt, dtype=np.int64).tobytes(), digest_size=16).digest()
        known = self._prompts.get(digest)
        if known is not None and known[0] >= self._floor:
            return known[1]
        first = self._count
        last = self.append(-1, prompt)
        if len(prompt):
            self._prompts.pop(digest, None)
            self._prompts[digest] = (first, last)
            while (oldest := next(iter(self._prompts.values())))[0] < self._floor and oldest[1] != last:
                del self._prompts[next(iter(self._prompts))]
        return last

    def append(self, position: int, tokens: Sequence[int]) -> int:
        """Add `tokens` after the one at `position` (-1: a new text); returns the position of the last one."""
        recent = self.text(position, max(_KEYS))
        all_tokens, before, behind, *chains = self._views()
        heads = [_view(head) for head in self._heads]
        for token in tokens:
            if not 0 <= token < self.vocab_size:
                raise InvalidInput(
                    f"A text holds token {token}, outside the cache's vocabulary of {self.vocab_size}; give "
                    "a cache for the vocabulary of the target."
                )
            new = self._count
            if new == len(all_tokens) < self.capacity:
                self._widen()
                all_tokens, before, behind, *chains = self._views()
            place = new % len(self._tokens)
            all_tokens[place], before[place], behind[place] = token, position, -1
            if position > new - self.capacity and position >= 0:
                behind[position % len(self._tokens)] = new
            recent = [*recent[1 - max(_KEYS) :], token]
            for key, chain, head in zip(_KEYS, chains, heads, strict=True):
                if len(recent) >= key:
                    bucket = hash(tuple(recent[-key:])) % len(head)
                    chain[place] = head[bucket] - 1
                    head[bucket] = new + 1
                else:
                    chain[place] = -1
            self._count, position = new + 1, new
        return position

    def text(self, position: int, count: int) -> list[int]:
        """The last tokens of a text up to the one at `position`, `count` of them at most."""
        tokens: list[int] = []
        while position >= self._floor and len(tokens) < count:
            place = position % len(self._tokens)
            tokens.append(int(self._tokens[place]))
            position = int(self._before[place])
        return tokens[::-1]

    def documents(self) -> list[Int[np.ndarray, " length"]]:
        """All texts as far as they are kept, each with its prompt, in the order of their last tokens."""
        kept = np.arange(self._floor, self._count)
        last = kept[self._behind[kept % len(self._tokens)] < 0].tolist()
        return [np.array(self.text(position, len(self)), dtype=np.int64) for position in last]

    def find(
        self, text: Sequence[int], *, longest: int, examples: int
    ) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Find where the last tokens of `text` occur, with another token after them.

        Args:
            text: token ids.
            longest: tokens that are compared.
            examples: positions that are looked at for an n-gram of one length, the last ones.

        Returns:
            Positions of the last token, and how many tokens there equal the end of `text`, 1 to `longest`.
        """
        found: dict[int, None] = {}
        floor = self._floor
        for key, chain, head in zip(_KEYS, self._chains, self._heads, strict=True):
            if len(text) < key:
                continue
            at, steps = int(head[hash(tuple(text[-key:])) % len(head)]) - 1, 0
            places = _view(chain)
            while at >= floor and steps < examples:
                found[at] = None
                at, steps = places[at % len(places)], steps + 1
        positions = np.fromiter(found, dtype=np.int64, count=len(found))
        positions = positions[self._behind[positions % len(self._tokens)] >= 0]
        lengths = np.zeros(len(positions), dtype=np.int64)
        same, here = np.arange(len(positions)), positions
        for token in text[: -longest - 1 : -1]:
            agrees = (here >= floor) & (self._tokens[here % len(self._tokens)] == token)
            same, here = same[agrees], here[agrees]
            if not len(same):
                break
            lengths[same] += 1
            here = self._before[here % len(self._tokens)]
        known = lengths > 0
        return positions[known], lengths[known]

    def next(self, positions: Int[np.ndarray, " n"]) -> tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]:
        """Returns the positions after these, which have one, and the tokens there."""
        behind = self._behind[positions % len(self._tokens)]
        return behind, self._tokens[behind % len(self._tokens)]

    def followed(self, positions: Int[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
        """Returns whether another token follows each of these positions."""
        known: Int[np.ndarray, " n"] = self._behind[positions % len(self._tokens)] >= 0
        return known

    def save(self, folder: str | os.PathLike[str]) -> int:
        """Write the cache to `folder`, made if need be; returns the bytes written.

        Raises:
            InvalidInput: `folder` cannot be written, or holds something other than a cache.
        """
        floor = self._floor
        kept = np.arange(floor, self._count)
        before = self._before[kept % len(self._tokens)] - floor
        arrays = {
            "tokens": self._tokens[kept % len(self._tokens)],
            "before": np.maximum(before, -1),
            "prompts": np.array(
                [one for one in self._prompts.values() if one[0] >= floor], dtype=np.int64
            ).reshape(-1, 2)
            - floor,
        }
        header = {
            "vocab_size": self.vocab_size,
            "capacity": self.capacity,
            "vocabulary": self.vocabulary,
        }
        return _FOLDER.write(folder, arrays, header)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, capacity: int | None = None) -> Self:
        """The cache that `save` left in `folder`; with another `capacity` the last tokens of it.

        Raises:
            InvalidInput: there is none, it is of another version, or its files are not what was written.
        """
        arrays, header = _FOLDER.read(folder, _ARRAYS, ("vocab_size", "capacity"))
        tokens, before, prompts = (arrays[name] for name in _ARRAYS)
        count, vocab_size = len(tokens), header["vocab_size"]
        shapes = (tokens.ndim, before.shape, prompts.ndim, prompts.shape[-1])
        kinds = {array.dtype.kind for array in arrays.values()}
        if (
            shapes != (1, (count,), 2, 2)
            or kinds != {"i"}
            or ((tokens < 0) | (tokens >= vocab_size) | (before < -1) | (before >= np.arange(count))).any()
            or ((prompts < 0) | (prompts >= count)).any()
        ):
            raise _FOLDER.corrupt(folder, "its files do not fit each other")
        cache = cls(vocab_size, capacity=capacity or header["capacity"], vocabulary=header["vocabulary"])
        cache._replay(tokens, before)
        for first, last in prompts.tolist():
            prompt = tokens[first : last + 1].astype(np.int64)
            cache._prompts[blake2b(prompt.tobytes(), digest_size=16).digest()] = (first, last)
        return cache

    def _replay(self, tokens: Int[np.ndarray, " n"], before: Int[np.ndarray, " n"]) -> None:
        """Add tokens that follow `before`; tokens in one run are added together."""
        starts = np.flatnonzero(before != np.arange(-1, len(tokens) - 1)).tolist()
        starts = starts if starts and starts[0] == 0 else [0, *starts]
        for start, stop in zip(starts, [*starts[1:], len(tokens)], strict=True):
            if stop > start:
                self.append(int(before[start]), tokens[start:stop].tolist())

    def _views(self) -> list[memoryview[int]]:
        """Returns tokens, the positions before and after, and the chains, for one number at a time."""
        return [_view(values) for values in (self._tokens, self._before, self._behind, *self._chains)]

    def _widen(self) -> None:
        size = min(2 * len(self._tokens), self.capacity)
        more = size - len(self._tokens)
        self._tokens, self._before, self._behind = (
            np.concatenate([values, np.zeros(more, dtype=values.dtype)])
            for values in (self._tokens, self._before, self._behind)
        )
        self._chains = np.concatenate([self._chains, np.zeros((len(_KEYS), more), dtype=np.int64)], 1)


def _view(values: np.ndarray) -> memoryview[int]:
    """Single numbers are read and written faster so than in an array."""
    return values.data
