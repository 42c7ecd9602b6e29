"""What a backend's answer depends on, found by making the same calls again with another token somewhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.protocols import StateBackend
from draftwood.testing.logits_mistakes import Node, difference, path_to, relation
from draftwood.testing.oracles import LogitsAfter

Mark = tuple[int, int]
"""A token among all that were given: the number of its row among all that joined, and its own in that row."""


@attrs.define
class Row:
    """One row's tokens by their marks' second number, and the tree before its last commit."""

    number: int
    given: int = 0
    text: list[int] = attrs.field(factory=list)
    nodes: list[int] = attrs.field(factory=list)
    before: tuple[list[int], list[Node], list[int]] | None = None

    def take(self, count: int) -> list[int]:
        self.given += count
        return list(range(self.given - count, self.given))


@attrs.define
class Story:
    """All calls on a backend since it had no rows.

    Attributes:
        calls: names and arguments.
        rows: those that are there now.
        gone: texts of released rows.
        joined: rows that there ever were.
    """

    calls: list[tuple[str, Any]] = attrs.field(factory=list)
    rows: list[Row] = attrs.field(factory=list)
    gone: list[list[int]] = attrs.field(factory=list)
    joined: int = 0

    def prefill(self, rows: Sequence[Sequence[int]]) -> None:
        self.calls.append(("prefill", [list(row) for row in rows]))
        for text in rows:
            row = Row(self.joined)
            row.text = row.take(len(text))
            self.rows.append(row)
            self.joined += 1

    def release(self, rows: Sequence[int] | None, texts: Sequence[list[int]]) -> None:
        self.calls.append(("release", rows))
        gone = range(len(self.rows)) if rows is None else rows
        self.gone += [texts[row] for row in gone if row < len(texts)]
        self.rows = [row for place, row in enumerate(self.rows) if place not in gone]

    def extend(self, new: Sequence[Sequence[Node]]) -> None:
        self.calls.append(("extend", [list(nodes) for nodes in new]))
        for row, nodes in zip(self.rows, new, strict=True):
            row.nodes += row.take(len(nodes))

    def commit(
        self,
        paths: Sequence[Sequence[int]],
        texts: Sequence[Sequence[int]],
        nodes: Sequence[Sequence[Node]],
    ) -> None:
        self.calls.append(("commit", [list(path) for path in paths]))
        for place, (row, path) in enumerate(zip(self.rows, paths, strict=True)):
            if nodes[place]:
                row.before = (list(texts[place]), list(nodes[place]), list(path))
            row.text += [row.nodes[node] for node in path]
            row.nodes = []

    def again(self, backend: StateBackend, changed: Collection[Mark] = ()) -> Tensor:
        """The logits of the last call when all are made again, with another token at these marks."""
        backend.release()
        numbers: list[int] = []
        given: list[int] = []

        def other(row: int, tokens: Sequence[int]) -> list[int]:
            first = given[row]
            given[row] += len(tokens)
            return [
                (token + 1) % backend.vocab_size if (row, place) in changed else token
                for place, token in enumerate(tokens, start=first)
            ]

        logits = torch.zeros(0)
        for name, argument in self.calls:
            if name == "prefill":
                joining = range(len(given), len(given) + len(argument))
                given += [0] * len(argument)
                texts = [other(row, text) for row, text in zip(joining, argument, strict=True)]
                backend.prefill([torch.tensor(text, dtype=torch.int64) for text in texts])
                numbers += joining
            elif name == "release":
                backend.release(argument)
                gone = range(len(numbers)) if argument is None else argument
                numbers = [row for place, row in enumerate(numbers) if place not in gone]
            elif name == "extend":
                new = [
                    list(zip(other(row, [t for t, _ in nodes]), [p for _, p in nodes], strict=True))
                    for row, nodes in zip(numbers, argument, strict=True)
                ]
                logits = backend.extend(*as_tensors(new))
            else:
                backend.commit(argument)
        return logits


def as_tensors(new: Sequence[Sequence[Node]]) -> tuple[Tensor, Tensor, list[int] | None]:
    """Tokens, parents and counts of an `extend` call; the padding holds what must not matter."""
    counts = [len(nodes) for nodes in new]
    width = max(counts, default=0)
    tokens, parents = torch.full((len(new), width), -100), torch.full((len(new), width), 10**6)
    for row, nodes in enumerate(new):
        for place, (token, parent) in enumerate(nodes):
            tokens[row, place], parents[row, place] = token, parent
    return tokens, parents, None if all(count == width for count in counts) else counts


@attrs.define
class Suspect:
    """A node whose logits are wrong.

    Attributes:
        backend: that gave them; it loses its rows.
        logits_after: the oracle.
        story: how it came there.
        row: place of its row.
        column: its place in the last call.
        text: committed tokens.
        nodes: of its tree.
        node: its place in the tree.
        found: logits `[vocab]`.
        tolerance: largest difference of two logits that count as equal.
    """

    backend: StateBackend
    logits_after: LogitsAfter
    story: Story
    row: int
    column: int
    text: list[int]
    nodes: list[Node]
    node: int
    found: Tensor
    tolerance: float

    def why(self) -> str:
        """The likely mistake by what the logits depend on, in a sentence."""
        if difference(self._again(), self.found) > self.tolerance:
            return (
                "the same calls made again after release() give other logits: something outlives a "
                "release, or chance is at work."
            )
        return self._sees_too_much() or self._sees_too_little() or self._counts_wrongly()

    def _again(self, changed: Collection[Mark] = ()) -> Tensor:
        logits: Tensor = self.story.again(self.backend, changed)[self.row, self.column].clone()
        return logits

    def _matters(self, marks: Collection[Mark]) -> bool:
        return difference(self._again(marks), self.found) > self.tolerance / 10

    def _first(self, marks: list[Mark]) -> Mark | None:
        """The first of these that matters alone; None where none of the first and last few does."""
        if not marks or not self._matters(marks):
            return None
        some = marks if len(marks) <= 24 else [*marks[:12], *marks[-12:]]
        return next((mark for mark in some if self._matters([mark])), None)

    def _sees_too_much(self) -> str:
        rows, me = self.story.rows, self.story.rows[self.row]
        own = set(path_to(self.nodes, self.node))
        beside = [(me.number, number) for place, number in enumerate(me.nodes) if place not in own]
        if (mark := self._first(beside)) is not None:
            other = me.nodes.index(mark[1])
            what = relation(self.nodes, self.node, other)
            return f"the tree mask is not applied: node {self.node} sees node {other}, {what}."
        known = {*me.text, *me.nodes}
        dropped = [(me.number, number) for number in range(me.given) if number not in known]
        if self._first(dropped) is not None:
            return (
                f"row {self.row} sees a node that a commit should have dropped: another path was committed."
            )
        for place, row in enumerate(rows):
            if row is not me and self._first([(row.number, number) for number in range(row.given)]):
                return f"row {self.row} sees tokens of row {place}: rows are mixed up or share a state."
        alive = {row.number for row in rows}
        counts: dict[int, int] = {}
        joined = 0
        for name, argument in self.story.calls:
            if name == "prefill":
                counts |= {joined + place: len(text) for place, text in enumerate(argument)}
                joined += len(argument)
        for number in range(self.story.joined):
            if number not in alive and self._first([(number, place) for place in range(counts[number])]):
                return f"row {self.row} sees the text of a row that was released."
        return ""

    def _sees_too_little(self) -> str:
        me, path = self.story.rows[self.row], path_to(self.nodes, self.node)
        tokens = [*self.text, *(self.nodes[place][0] for place in path)]
        marks = [*me.text, *(me.nodes[place] for place in path)]
        right = self.logits_after(tokens)
        for place in _some(len(tokens)):
            altered = list(tokens)
            altered[place] = (altered[place] + 1) % self.backend.vocab_size
            # What the model itself does not look at is not missed.
            needed = difference(self.logits_after(altered), right) > self.tolerance
            if needed and not self._matters([(me.number, marks[place])]):
                if place >= len(self.text):
                    return (
                        f"node {self.node} does not see node {path[place - len(self.text)]} of its own path."
                    )
                return f"token {place} of the {len(self.text)} committed ones is not seen."
        return ""

    def _counts_wrongly(self) -> str:
        path = path_to(self.nodes, self.node)
        chain = [(self.nodes[place][0], above) for above, place in enumerate(path, start=-1)]
        self.backend.release()
        self.backend.prefill([torch.tensor(self.text, dtype=torch.int64)])
        alone = self.backend.extend(*as_tensors([chain]))[0, -1]
        tokens = [*self.text, *(token for token, _ in chain)]
        if difference(alone, self.logits_after(tokens)) > self.tolerance:
            return f"a plain chain of {len(tokens)} in all is wrong too: look at positions and limits."
        if self.node != len(path) - 1:
            return (
                f"the same path alone is right: positions count places, not depths (node {self.node} has "
                f"depth {len(path) - 1})."
            )
        return (
            "the same text and path alone are right: look at padding, positions and what earlier calls left."
        )


def _some(count: int) -> list[int]:
    """Places to look at: all of a short text, of a long one the last, the first and some between."""
    places = range(count - 1, -1, -1)
    return list(places) if count <= 40 else [*places[:16], *places[-4:], *places[16:-4:16]]


def explained(why: Callable[[], str]) -> str:
    """What `why` says; nothing where the broken part fails while it is looked at."""
    try:
        return why()
    except Exception:  # it is broken, and may fail in any way
        return ""
