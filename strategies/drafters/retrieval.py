"""Retrieval: what followed the last words in a corpus of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import attrs
import numpy as np
from jaxtyping import Int

from draftwood import IncompatibleModels, InvalidInput, Request
from draftwood.base.validators import at_least
from draftwood.strategies.drafters.suffix_index import SuffixIndex
from draftwood.strategies.drafters.table import Followers, TableDrafter, TableRow

Ranges = Int[np.ndarray, "lengths 2"]
"""For every length m the suffixes of the corpus that start with a text's last m tokens: first, last + 1."""


def _as_index(index: SuffixIndex | str | PathLike[str]) -> SuffixIndex:
    return index if isinstance(index, SuffixIndex) else SuffixIndex.open(index)


@attrs.define(eq=False)
class _RetrievalRow(TableRow):
    """Where the last tokens of a row's text and of the round's nodes stand in the corpus."""

    index: SuffixIndex
    longest: int
    shortest: int
    examples: int
    text: Ranges
    nodes: Int[np.ndarray, "nodes lengths 2"]

    @classmethod
    def empty(cls, index: SuffixIndex, *, longest: int, shortest: int, examples: int) -> _RetrievalRow:
        text = np.zeros((longest + 1, 2), dtype=np.int64)
        text[0] = index.all_suffixes
        return cls(index, longest, shortest, examples, text, text[None][:0])

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens[-self.longest :]:
            self.text = self._narrowed(self.text[None], np.array([token]))[0]
        self.nodes = self.nodes[:0]

    def followers(self, request: Request) -> list[Followers | None]:
        first = len(self.nodes)
        tokens, parents = request.tokens.cpu().numpy(), request.parents.cpu().numpy()
        while (done := len(self.nodes) - first) < len(tokens):
            unknown = np.flatnonzero(parents[done:] >= len(self.nodes))
            stop = done + int(unknown[0]) if len(unknown) else len(tokens)
            parent_ranges = np.concatenate([self.nodes, self.text[None]])  # parent -1 is the text
            ranges = self._narrowed(parent_ranges[parents[done:stop]], tokens[done:stop])
            self.nodes = np.concatenate([self.nodes, ranges])
        return [self._longest_match(ranges) for ranges in self.nodes[first:]]

    def _narrowed(
        self, before: Int[np.ndarray, "k lengths 2"], tokens: Int[np.ndarray, " k"]
    ) -> Int[np.ndarray, "k lengths 2"]:
        """Returns the ranges after one more token: a match of m tokens is one of m - 1 and the new one."""
        after = before.copy()  # that of length 0 stays
        low, high = before[:, :-1, 0], before[:, :-1, 1]
        depth = np.broadcast_to(np.arange(self.longest), low.shape)
        token = np.broadcast_to(tokens[:, None], low.shape)
        after[:, 1:, 0], after[:, 1:, 1] = self.index.narrow(low, high, depth=depth, token=token)
        return after

    def _longest_match(self, ranges: Ranges) -> Followers | None:
        """Returns the tokens that follow the longest match, or None."""
        lengths = np.flatnonzero(ranges[:, 0] < ranges[:, 1])
        if lengths[-1] < self.shortest:
            return None
        low, high = ranges[lengths[-1]].tolist()
        return Followers(*self.index.followers(low, high, int(lengths[-1]), examples=self.examples))


@attrs.define(eq=False)
class RetrievalDrafter(TableDrafter):
    """Looks for the longest recent tokens in an indexed corpus and proposes what followed them there.

    Its distribution is the empirical one over all occurrences of the longest suffix of the node's text
    that another token of the same document follows; where not even `shortest` tokens match
    it proposes nothing. Needs no weights and no pass; a tree policy then cuts its tree out of the trie
    of continuations, as REST does by frequency.

    Attributes:
        index: a `SuffixIndex`, or the folder of one (see `draftwood index`).
        vocab_size: the target's; above the index's own where the target pads its vocabulary.
        longest: the most tokens that are looked for.
        shortest: the fewest.
        examples: of more occurrences than these, as many are counted, evenly spread over the sorted ones.

    Raises:
        InvalidInput: an option out of range, or an index that cannot be read.
        IncompatibleModels: the index holds tokens that the target lacks.

    Source: He et al. 2023, REST (arXiv 2311.08252), section 3: exact match of the longest suffix.
    """

    index: SuffixIndex = attrs.field(converter=_as_index)
    vocab_size: int = attrs.field(validator=at_least(1))
    longest: int = attrs.field(default=16, validator=at_least(1))
    shortest: int = attrs.field(default=2, validator=at_least(1))
    examples: int = attrs.field(default=5000, validator=at_least(1))
    index_class = SuffixIndex  # what the command line builds, which knows this class only by name
    source = "He et al. 2023, REST (arXiv 2311.08252)"

    def __attrs_post_init__(self) -> None:
        if self.shortest > self.longest:
            raise InvalidInput(f"shortest is {self.shortest}; it must not exceed longest, {self.longest}.")
        if self.index.vocab_size > self.vocab_size:
            raise IncompatibleModels(
                f"The index is for a vocabulary of {self.index.vocab_size} tokens and the target has "
                f"{self.vocab_size}; build the index with the target's tokenizer."
            )

    @property
    def vocabulary(self) -> str | None:
        """Digest of the vocabulary that the index was built with, or None where that is unknown."""
        return self.index.vocabulary

    def _row(self) -> TableRow:
        return _RetrievalRow.empty(
            self.index, longest=self.longest, shortest=self.shortest, examples=self.examples
        )
