"""Prompt lookup: what followed the last words before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from draftwood import Drafter, InvalidInput, Outcome, Request
from draftwood.fields import at_least


@attrs.define(eq=False)
class _Row:
    """A row's text and, for every n-gram in it, what followed and how often."""

    longest: int
    text: list[int] = attrs.field(factory=list)
    followers: dict[tuple[int, ...], Counter[int]] = attrs.field(factory=dict)
    asked: list[tuple[int, int]] = attrs.field(factory=list)  # token and parent of the round's nodes

    def append(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            for n in range(1, min(self.longest, len(self.text)) + 1):
                self.followers.setdefault(tuple(self.text[-n:]), Counter())[token] += 1
            self.text.append(token)


@attrs.define(eq=False)
class PromptLookup(Drafter):
    """Looks for the longest recent n-gram earlier in the row's own text and proposes what followed it.

    Its distribution is the empirical one of the continuations; where nothing matches it proposes
    nothing. Needs no weights and no pass.

    Source: Saxena 2023, prompt lookup decoding; `transformers`' `prompt_lookup_num_tokens`.
    """

    vocab_size: int = attrs.field(validator=at_least(1))
    longest: int = attrs.field(default=3, validator=at_least(1))
    shortest: int = attrs.field(default=1, validator=at_least(1))
    _rows: list[_Row] = attrs.field(factory=list, init=False)
    source = "Saxena 2023, prompt lookup decoding"

    def __attrs_post_init__(self) -> None:
        if self.shortest > self.longest:
            raise InvalidInput(f"shortest is {self.shortest}; it must not exceed longest, {self.longest}.")

    def prefill(self, rows: Sequence[Tensor]) -> None:
        for tokens in rows:
            row = _Row(self.longest)
            row.append(tokens.tolist())
            self._rows.append(row)

    def release(self, rows: Sequence[int] | None = None) -> None:
        gone = set(range(len(self._rows)) if rows is None else rows)
        self._rows = [row for place, row in enumerate(self._rows) if place not in gone]

    def distributions(self, requests: Sequence[Request | None]) -> Tensor:
        widest = max(len(request) if request is not None else 0 for request in requests)
        logits = torch.full((len(requests), widest, self.vocab_size), -torch.inf)
        for place, (row, request) in enumerate(zip(self._rows, requests, strict=True)):
            if request is None:
                continue
            start = len(row.asked)
            row.asked += zip(request.tokens.tolist(), request.parents.tolist(), strict=True)
            for i in range(len(request)):
                found = self._followers(row, start + i)
                if found:
                    counts = torch.tensor(list(found.values()), dtype=logits.dtype)
                    logits[place, i, list(found)] = counts.log()
        return logits

    def _followers(self, row: _Row, number: int) -> Counter[int] | None:
        """Continuations of the longest known n-gram that ends at a node."""
        recent: list[int] = []
        while number >= 0 and len(recent) < self.longest:
            token, number = row.asked[number]
            recent.append(token)
        recent = recent[::-1]
        missing = self.longest - len(recent)
        recent = row.text[max(len(row.text) - missing, 0) :] + recent if missing else recent
        for n in range(min(self.longest, len(recent)), self.shortest - 1, -1):
            found = row.followers.get(tuple(recent[-n:]))
            if found:
                return found
        return None

    def commit(self, outcomes: Sequence[Outcome]) -> None:
        for row, outcome in zip(self._rows, outcomes, strict=True):
            row.append(outcome.tokens)
            row.asked = []
