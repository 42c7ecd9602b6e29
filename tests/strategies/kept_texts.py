"""A suffix cache as plain lists, to compare the real one with."""

from __future__ import annotations

import attrs
from hypothesis import strategies as st

VOCAB = 3
texts = st.lists(st.integers(0, VOCAB - 1), max_size=12)


@attrs.define
class Kept:
    """A cache as plain lists: every token that was ever added, and the number of the one before it."""

    capacity: int
    tokens: list[int] = attrs.field(factory=list)
    before: list[int] = attrs.field(factory=list)
    prompts: dict[tuple[int, ...], tuple[int, int]] = attrs.field(factory=dict)

    @property
    def alive(self):
        return range(max(len(self.tokens) - self.capacity, 0), len(self.tokens))

    def begin(self, prompt):
        first, last = self.prompts.get(tuple(prompt), (-1, -1))
        if first in self.alive:
            return last
        first = len(self.tokens)
        last = self.append(-1, prompt)
        if prompt:
            self.prompts[tuple(prompt)] = (first, last)
        return last

    def append(self, position, tokens):
        for token in tokens:
            self.tokens.append(token)
            self.before.append(position)
            position = len(self.tokens) - 1
        return position

    def text(self, position, count):
        tokens: list[int] = []
        while position in self.alive and len(tokens) < count:
            tokens.insert(0, self.tokens[position])
            position = self.before[position]
        return tokens

    def behind(self, position):
        """Returns the last token that was added after it while it was there, or None."""
        found = [p for p in self.alive if self.before[p] == position and p - position < self.capacity]
        return found[-1] if found else None

    def find(self, text, longest):
        found = {}
        for position in self.alive:
            if self.behind(position) is None:
                continue
            known = self.text(position, longest)
            length = 0
            while length < min(len(known), len(text)) and known[-1 - length] == text[-1 - length]:
                length += 1
            if length:
                found[position] = length
        return found
