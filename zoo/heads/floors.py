"""The floors that a head must exceed: guesses at a target's text that need no head."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from ..distil.rows import Rows

LEAST = 0.2
"""Share of first tokens that every head which was trained for its target guesses."""
_RANDOM = 0.05  # of random heads
_OF_LOOKUP = 0.5  # a head that knows less than half of what the text repeats has not seen the target
_OF_UNIGRAM = 1.5
_LONGEST = 3  # tokens that prompt lookup looks for


@attrs.frozen(kw_only=True)
class Floors:
    """Shares of the target's tokens that are guessed without a head.

    Attributes:
        unigram: by the most frequent token of the target's other texts.
        lookup: by what followed the last tokens before, in the same text.
    """

    unigram: float
    lookup: float

    @property
    def least(self) -> float:
        """The share of first tokens below which a head is called weak."""
        return max(LEAST, self.chance, _OF_LOOKUP * self.lookup)

    @property
    def chance(self) -> float:
        """The share of first tokens that a head guesses which knows nothing of its target's states."""
        return max(_RANDOM, _OF_UNIGRAM * self.unigram)


def floors_of(texts: Sequence[Rows]) -> Floors:
    """Returns the floors on texts that a target wrote greedily, each a row after its prompt."""
    rows = [(row, text.prompt) for text in texts for row in (line.tolist() for line in text.tokens)]
    counts = [Counter(row[prompt:]) for row, prompt in rows]
    every = sum(counts, Counter[int]())
    unigram = lookup = total = 0
    for (row, prompt), own in zip(rows, counts, strict=True):
        # A text does not tell its own most frequent token.
        others = every - own
        best = others.most_common(1)[0][0] if others else None
        unigram += own[best] if best is not None else 0
        lookup += looked_up(row, prompt)
        total += len(row) - prompt
    return Floors(unigram=unigram / max(total, 1), lookup=lookup / max(total, 1))


def looked_up(row: Sequence[int], prompt: int) -> int:
    """Returns how many tokens from `prompt` on are what followed the longest of the last n-grams before."""
    followed: dict[tuple[int, ...], int] = {}
    right = 0
    for place, token in enumerate(row):
        recent = [tuple(row[place - length : place]) for length in range(min(_LONGEST, place), 0, -1)]
        if place >= prompt:
            guess = next((followed[gram] for gram in recent if gram in followed), None)
            right += guess == token
        followed.update(dict.fromkeys(recent, token))
    return right
