"""Prompt lookup: what followed the last words before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from draftwood import InvalidInput, Request, RequestLog
from draftwood.base.validators import at_least
from draftwood.strategies.drafters.table import Followers, TableDrafter, TableRow


@attrs.define(eq=False)
class _LookupRow(TableRow):
    """A row's text and, for every n-gram in it, what followed and how often."""

    longest: int
    shortest: int
    text: list[int] = attrs.field(factory=list)
    table: dict[tuple[int, ...], Counter[int]] = attrs.field(factory=dict)
    requested: RequestLog = attrs.field(factory=RequestLog)

    def commit(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            for n in range(1, min(self.longest, len(self.text)) + 1):
                self.table.setdefault(tuple(self.text[-n:]), Counter())[token] += 1
            self.text.append(token)
        self.requested = RequestLog()

    def followers(self, request: Request) -> list[Followers | None]:
        return [self._followers(node) for node in self.requested.take(request)]

    def _followers(self, number: int) -> Followers | None:
        """Continuations of the longest n-gram in the table that ends at a node."""
        recent: list[int] = []
        while number >= 0 and len(recent) < self.longest:
            recent.append(self.requested.tokens[number])
            number = self.requested.parents[number]
        recent = recent[::-1]
        missing = self.longest - len(recent)
        recent = self.text[max(len(self.text) - missing, 0) :] + recent if missing else recent
        for n in range(min(self.longest, len(recent)), self.shortest - 1, -1):
            counts = self.table.get(tuple(recent[-n:]))
            if counts:
                return Followers(list(counts), list(counts.values()))
        return None


@attrs.define(eq=False)
class PromptLookup(TableDrafter):
    """Looks for the longest recent n-gram earlier in the row's own text and proposes what followed it.

    Its distribution is the empirical one of the continuations; where nothing matches it proposes
    nothing. Needs no weights and no pass.

    Source: Saxena 2023, prompt lookup decoding; `transformers`' `prompt_lookup_num_tokens`.
    """

    vocab_size: int = attrs.field(validator=at_least(1))
    longest: int = attrs.field(default=3, validator=at_least(1))
    shortest: int = attrs.field(default=1, validator=at_least(1))
    source = "Saxena 2023, prompt lookup decoding"

    def __attrs_post_init__(self) -> None:
        if self.shortest > self.longest:
            raise InvalidInput(f"shortest is {self.shortest}; it must not exceed longest, {self.longest}.")

    def _row(self) -> TableRow:
        return _LookupRow(self.longest, self.shortest)
