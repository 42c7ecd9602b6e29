"""All calls that a backend got, so that they can be made again with another token somewhere."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.protocols import StateBackend
from draftwood.testing.diagnosis.logits_mistakes import Node

Mark = tuple[int, int]
"""A token of all calls: the number of its row among all that joined, and its number in that row."""


@attrs.define
class LoggedRow:
    """One row's tokens by their marks' second number, and the tree before its last commit."""

    number: int
    count: int = 0
    text: list[int] = attrs.field(factory=list)
    nodes: list[int] = attrs.field(factory=list)
    before: tuple[list[int], list[Node], list[int]] | None = None

    def take(self, count: int) -> list[int]:
        self.count += count
        return list(range(self.count - count, self.count))


@attrs.define
class CallLog:
    """All calls on a backend since it had no rows.

    Attributes:
        calls: names and arguments.
        rows: those that are there now.
        gone: texts of released rows.
        joined: rows that there ever were.
    """

    calls: list[tuple[str, Any]] = attrs.field(factory=list)
    rows: list[LoggedRow] = attrs.field(factory=list)
    gone: list[list[int]] = attrs.field(factory=list)
    joined: int = 0

    def prefill(self, rows: Sequence[Sequence[int]]) -> None:
        self.calls.append(("prefill", [list(row) for row in rows]))
        for text in rows:
            row = LoggedRow(self.joined)
            row.text = row.take(len(text))
            self.rows.append(row)
            self.joined += 1

    def release(self, rows: Sequence[int] | None, texts: Sequence[list[int]]) -> None:
        self.calls.append(("release", rows))
        gone = range(len(self.rows)) if rows is None else rows
        self.gone += [texts[row] for row in gone if row < len(texts)]
        self.rows = [row for index, row in enumerate(self.rows) if index not in gone]

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
        for index, (row, path) in enumerate(zip(self.rows, paths, strict=True)):
            if nodes[index]:
                row.before = (list(texts[index]), list(nodes[index]), list(path))
            row.text += [row.nodes[node] for node in path]
            row.nodes = []

    def again(self, backend: StateBackend, changed: Collection[Mark] = ()) -> Tensor:
        """The logits of the last call when all are made again, with another token at these marks."""
        backend.release()
        numbers: list[int] = []
        counts: list[int] = []

        def other(row: int, tokens: Sequence[int]) -> list[int]:
            first = counts[row]
            counts[row] += len(tokens)
            return [
                (token + 1) % backend.vocab_size if (row, position) in changed else token
                for position, token in enumerate(tokens, start=first)
            ]

        logits = torch.zeros(0)
        for name, argument in self.calls:
            if name == "prefill":
                joining = range(len(counts), len(counts) + len(argument))
                counts += [0] * len(argument)
                texts = [other(row, text) for row, text in zip(joining, argument, strict=True)]
                backend.prefill([torch.tensor(text, dtype=torch.int64) for text in texts])
                numbers += joining
            elif name == "release":
                backend.release(argument)
                gone = range(len(numbers)) if argument is None else argument
                numbers = [row for position, row in enumerate(numbers) if position not in gone]
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
        for column, (token, parent) in enumerate(nodes):
            tokens[row, column], parents[row, column] = token, parent
    return tokens, parents, None if all(count == width for count in counts) else counts
