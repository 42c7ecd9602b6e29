"""Online retrieval: what followed the last words in the texts of this and earlier calls."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

import attrs
import numpy as np
from jaxtyping import Float, Int

from draftwood import IncompatibleModels, InvalidInput, Request, RequestLog
from draftwood.base.validators import at_least
from draftwood.strategies.drafters.suffix_cache import SuffixCache
from draftwood.strategies.drafters.table import Followers, TableDrafter, TableRow

Matches = tuple[Int[np.ndarray, " n"], Int[np.ndarray, " n"]]
"""Positions of a cache where the end of a text occurs, and the number of matching tokens."""


def _as_cache(cache: SuffixCache | str | PathLike[str] | None) -> SuffixCache | None:
    return cache if cache is None or isinstance(cache, SuffixCache) else SuffixCache.open(cache)


@attrs.define(eq=False)
class _CachedRow(TableRow):
    """A row's text in the cache, and where the texts of the round's nodes stand in it."""

    drafter: CachedSuffixes
    position: int | None = None
    requested: RequestLog = attrs.field(factory=RequestLog)
    nodes: list[Matches] = attrs.field(factory=list)

    def commit(self, tokens: Sequence[int]) -> None:
        cache = self.drafter.store
        if self.position is None:
            self.position = cache.begin(tokens)
        else:
            self.position = cache.append(self.position, tokens)
        self.requested, self.nodes = RequestLog(), []

    def followers(self, request: Request) -> list[Followers | None]:
        for number in self.requested.take(request):
            self.nodes.append(self._matches(number))
        return [self.drafter.counted(matches) for matches in self.nodes[-len(request) :]]

    def _matches(self, number: int) -> Matches:
        """Returns the parent's matches that go on with the node's token; without any, all of its text."""
        drafter, cache = self.drafter, self.drafter.store
        token, parent = self.requested.tokens[number], self.requested.parents[number]
        if parent >= 0:
            positions, lengths = self.nodes[parent]
            behind, tokens = cache.next(positions)
            goes_on = (tokens == token) & cache.followed(behind)
            if goes_on.any():
                return behind[goes_on], np.minimum(lengths[goes_on] + 1, drafter.longest)
        recent: list[int] = []
        while number >= 0 and len(recent) < drafter.longest:
            recent.append(self.requested.tokens[number])
            number = self.requested.parents[number]
        text = cache.text(-1 if self.position is None else self.position, drafter.longest - len(recent))
        return cache.find([*text, *recent[::-1]], longest=drafter.longest, examples=drafter.examples)


@attrs.define(eq=False)
class CachedSuffixes(TableDrafter):
    """Looks for the last tokens in all texts of this and earlier calls; proposes what followed them there.

    Rows see what the others have written by the last round, so that samples of one prompt help each other
    while they run, and later ones from the start. A tree policy cuts its tree out of the continuations.

    Matches of all lengths speak. From no knowledge at all, an equal chance for every token, each length m
    moves the distribution towards what followed the C matches of m tokens or more: `p_m(x) = (c_m(x) + escape
    p_{m-1}(x)) / (C_m + escape)`. So long matches and many of them are trusted, and a tree with a threshold
    ends where neither is there.

    Its answers depend on what other rows and earlier calls wrote: no loss, but a sampled text is another one
    with another cache. Draft at temperature 1: the texts were written at the target's temperature already.

    Attributes:
        vocab_size: the target's.
        cache: where texts are kept; or the folder of one that was saved; None for a new, empty one.
            Several drafters may share one, used by one thread at a time.
        longest: the most tokens of a text that are looked for.
        shortest: the fewest.
        examples: matches that are looked at for each of four lengths, the last ones.
        escape: what is left to shorter matches, in matches.

    Raises:
        InvalidInput: an option out of range, or a cache that cannot be read.
        IncompatibleModels: the cache is for another number of tokens.

    Source: SuffixDecoding (Oliaro et al. 2024, arXiv 2411.04975), with interpolated counts in place of its
    score; prediction by partial matching (Cleary & Witten 1984).
    """

    vocab_size: int = attrs.field(validator=at_least(1))
    cache: SuffixCache | None = attrs.field(default=None, converter=_as_cache)
    longest: int = attrs.field(default=16, validator=at_least(1))
    shortest: int = attrs.field(default=1, validator=at_least(1))
    examples: int = attrs.field(default=256, validator=at_least(1))
    escape: float = attrs.field(default=8.0)
    store: SuffixCache = attrs.field(init=False, repr=False)
    remembers = True
    source = "Oliaro et al. 2024, SuffixDecoding (arXiv 2411.04975)"

    def __attrs_post_init__(self) -> None:
        if self.shortest > self.longest:
            raise InvalidInput(f"shortest is {self.shortest}; it must not exceed longest, {self.longest}.")
        if not 0 < self.escape < float("inf"):
            raise InvalidInput(f"escape is {self.escape!r}; give a number above 0.")
        self.store = SuffixCache(self.vocab_size) if self.cache is None else self.cache
        if self.store.vocab_size != self.vocab_size:
            raise IncompatibleModels(
                f"The cache is for a vocabulary of {self.store.vocab_size} tokens and the target has "
                f"{self.vocab_size}; give a cache of this target's texts."
            )

    @property
    def vocabulary(self) -> str | None:
        """Digest of the vocabulary that the cache is for, or None where that is unknown."""
        return self.store.vocabulary

    def counted(self, matches: Matches) -> Followers | None:
        """Returns the distribution after `matches`, or None where none is long enough."""
        positions, lengths = matches
        known = lengths >= self.shortest
        if not known.any():
            return None
        positions, lengths = positions[known], lengths[known]
        shares, rest = _interpolated(lengths, self.shortest, self.escape)
        tokens, of_token = np.unique(self.store.next(positions)[1], return_inverse=True)
        even = rest / self.vocab_size
        weights = np.bincount(of_token, weights=shares[lengths]) + even
        return Followers(tokens, weights, rest=even * (self.vocab_size - len(tokens)))

    def _row(self) -> TableRow:
        return _CachedRow(self)


def _interpolated(
    lengths: Int[np.ndarray, " n"], shortest: int, escape: float
) -> tuple[Float[np.ndarray, " m"], float]:
    """The share of one match by its length, `[max(lengths) + 1]`, and what no match has."""
    matches = np.cumsum(np.bincount(lengths)[::-1])[::-1].astype(float)  # of m tokens or more
    left = np.ones(len(matches) + 1)  # of all that is shorter than m
    left[:-1] = np.cumprod((escape / (matches + escape))[::-1])[::-1]
    of_length = left[1:] / (matches + escape)
    of_length[:shortest] = 0
    return np.cumsum(of_length), float(left[shortest])
