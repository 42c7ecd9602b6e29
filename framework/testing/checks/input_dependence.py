"""Finds the tokens that a backend's logits depend on: calls are repeated with one token changed."""

from __future__ import annotations

from collections.abc import Callable, Collection

import attrs
import torch
from torch import Tensor

from draftwood.protocols import StateBackend
from draftwood.testing.checks.call_log import CallLog, Mark, as_tensors
from draftwood.testing.diagnosis.logits_mistakes import Node, difference, path_to, relation
from draftwood.testing.models.oracles import LogitsAfter


@attrs.define
class WrongNode:
    """A node whose logits are wrong.

    Attributes:
        backend: that gave them; it loses its rows.
        logits_after: the oracle.
        log: how it came there.
        row: number of its row.
        column: its index in the last call.
        text: committed tokens.
        nodes: of its tree.
        node: its region index.
        logits: `[vocab]`.
        tolerance: largest difference of two logits that count as equal.
    """

    backend: StateBackend
    logits_after: LogitsAfter
    log: CallLog
    row: int
    column: int
    text: list[int]
    nodes: list[Node]
    node: int
    logits: Tensor
    tolerance: float

    def why(self) -> str:
        """The likely mistake by what the logits depend on, in a sentence."""
        if difference(self._again(), self.logits) > self.tolerance:
            return (
                "the same calls made again after release() give other logits: something outlives a "
                "release, or chance is at work."
            )
        return self._sees_too_much() or self._sees_too_little() or self._counts_wrongly()

    def _again(self, changed: Collection[Mark] = ()) -> Tensor:
        logits: Tensor = self.log.again(self.backend, changed)[self.row, self.column].clone()
        return logits

    def _matters(self, marks: Collection[Mark]) -> bool:
        return difference(self._again(marks), self.logits) > self.tolerance / 10

    def _first(self, marks: list[Mark]) -> Mark | None:
        """Returns the first mark that matters by itself; None where none of the first and last few does."""
        if not marks or not self._matters(marks):
            return None
        tried = marks if len(marks) <= 24 else [*marks[:12], *marks[-12:]]
        return next((mark for mark in tried if self._matters([mark])), None)

    def _sees_too_much(self) -> str:
        rows, me = self.log.rows, self.log.rows[self.row]
        path = set(path_to(self.nodes, self.node))
        beside = [(me.number, number) for index, number in enumerate(me.nodes) if index not in path]
        if (mark := self._first(beside)) is not None:
            other = me.nodes.index(mark[1])
            what = relation(self.nodes, self.node, other)
            return f"the tree mask is not applied: node {self.node} sees node {other}, {what}."
        present = {*me.text, *me.nodes}
        dropped = [(me.number, number) for number in range(me.count) if number not in present]
        if self._first(dropped) is not None:
            return (
                f"row {self.row} sees a node that a commit should have dropped: another path was committed."
            )
        for index, row in enumerate(rows):
            if row is not me and self._first([(row.number, number) for number in range(row.count)]):
                return f"row {self.row} sees tokens of row {index}: rows are mixed up or share a state."
        alive = {row.number for row in rows}
        counts: dict[int, int] = {}
        joined = 0
        for name, argument in self.log.calls:
            if name == "prefill":
                counts |= {joined + index: len(text) for index, text in enumerate(argument)}
                joined += len(argument)
        for number in range(self.log.joined):
            if number not in alive and self._first([(number, index) for index in range(counts[number])]):
                return f"row {self.row} sees the text of a row that was released."
        return ""

    def _sees_too_little(self) -> str:
        me, path = self.log.rows[self.row], path_to(self.nodes, self.node)
        tokens = [*self.text, *(self.nodes[index][0] for index in path)]
        marks = [*me.text, *(me.nodes[index] for index in path)]
        right = self.logits_after(tokens)
        for index in _sample_positions(len(tokens)):
            altered = list(tokens)
            altered[index] = (altered[index] + 1) % self.backend.vocab_size
            # What the model itself does not look at is not missed.
            needed = difference(self.logits_after(altered), right) > self.tolerance
            if needed and not self._matters([(me.number, marks[index])]):
                if index >= len(self.text):
                    return f"node {self.node} does not see node {path[index - len(self.text)]} on its path."
                return f"token {index} of the {len(self.text)} committed ones is not seen."
        return ""

    def _counts_wrongly(self) -> str:
        path = path_to(self.nodes, self.node)
        chain = [(self.nodes[index][0], above) for above, index in enumerate(path, start=-1)]
        self.backend.release()
        self.backend.prefill([torch.tensor(self.text, dtype=torch.int64)])
        alone = self.backend.extend(*as_tensors([chain]))[0, -1]
        tokens = [*self.text, *(token for token, _ in chain)]
        if difference(alone, self.logits_after(tokens)) > self.tolerance:
            return f"a plain chain of {len(tokens)} in all is wrong too: look at positions and limits."
        if self.node != len(path) - 1:
            return (
                "the path is right when it is the whole tree: positions count nodes, not depths (node "
                f"{self.node} has depth {len(path) - 1})."
            )
        return (
            "the path is right when nothing else is there: look at padding, positions and the remains of "
            "earlier calls."
        )


def _sample_positions(count: int) -> list[int]:
    """Positions to look at: all of a short text, of a long one the last, the first and some between."""
    positions = range(count - 1, -1, -1)
    return list(positions) if count <= 40 else [*positions[:16], *positions[-4:], *positions[16:-4:16]]


def explained(why: Callable[[], str]) -> str:
    """Returns the text of `why`; an empty one where the broken part fails during the search."""
    try:
        return why()
    except Exception:  # it is broken, and may fail in any way
        return ""
