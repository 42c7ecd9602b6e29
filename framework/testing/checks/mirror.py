"""A backend and a mirror that keeps lists of tokens; every call is made on both and compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import torch
from torch import Tensor

from draftwood.protocols import StateBackend
from draftwood.testing.checks.call_log import CallLog, as_tensors
from draftwood.testing.checks.input_dependence import WrongNode, explained
from draftwood.testing.diagnosis import logits_mistakes
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.diagnosis.logits_mistakes import Node, difference, path_to
from draftwood.testing.models.oracles import LogitsAfter, Text


@attrs.define
class Mirror:
    """A backend and the lists of tokens that it should stand for; every call is made on both and compared.

    Attributes:
        backend: the backend under test, without rows at first.
        logits_after: next-token logits `[vocab]` after a list of tokens.
        tolerance: largest absolute difference allowed in a logit.
        texts: committed tokens of every row.
        nodes: uncommitted nodes of every row.
        worst: largest difference seen.
        explains: look for the likely mistake at once, for which the backend loses its rows.
        log: all calls.
    """

    backend: StateBackend
    logits_after: LogitsAfter
    tolerance: float = 1e-4
    texts: list[Text] = attrs.field(factory=list)
    nodes: list[list[Node]] = attrs.field(factory=list)
    worst: float = 0.0
    explains: bool = True
    log: CallLog = attrs.field(factory=CallLog, init=False, repr=False)
    _returned: tuple[Tensor, Tensor] | None = attrs.field(default=None, init=False, repr=False)

    def prefill(self, rows: Sequence[Sequence[int]]) -> None:
        """Append rows, and compare the logits after them where the backend gives these."""
        self.log.prefill(rows)
        texts = [torch.tensor(row, dtype=torch.int64) for row in rows]
        logits = None
        if self.backend.gives_first_logits and all(rows):
            logits = self.backend.first_logits(texts)
        else:
            self.backend.prefill(texts)
        # After a prefill without logits the last token of the prompt is the first root.
        self.texts += [Text(row, len(row) + (logits is None)) for row in rows]
        self.nodes += [[] for _ in rows]
        self._after("prefill")
        if logits is not None:
            self._compare_first(logits, rows)

    def release(self, rows: Sequence[int] | None) -> None:
        """Forget rows; None means all."""
        self.log.release(rows, self.texts)
        self.backend.release(rows)
        rows = range(len(self.texts)) if rows is None else rows
        self.texts = [text for row, text in enumerate(self.texts) if row not in rows]
        self.nodes = [nodes for row, nodes in enumerate(self.nodes) if row not in rows]
        self._after("release")

    def extend(self, new: Sequence[Sequence[Node]]) -> None:
        """Append nodes to every row and compare all their logits; padding holds what must not matter."""
        self.log.extend(new)
        tokens, parents, counts = as_tensors(new)
        original = tokens.clone(), parents.clone()
        logits = self.backend.extend(tokens, parents, counts)
        if not (torch.equal(tokens, original[0]) and torch.equal(parents, original[1])):
            raise LawBroken(
                "extend() writes to the tokens or parents of its call.",
                likely="padding is masked in place; do it on a copy.",
            )
        shape = (*tokens.shape, self.backend.vocab_size)
        assert tuple(logits.shape) == shape, f"The logits have the shape {tuple(logits.shape)}, not {shape}."
        for row, nodes in enumerate(new):
            start = len(self.nodes[row])
            self.nodes[row] += nodes
            for column in range(len(nodes)):
                self._compare(logits[row, column], row, column, start)
        self._after("extend")
        self._returned = logits, logits.clone()

    def commit(self, paths: Sequence[Sequence[int]]) -> None:
        """Keep one path a row."""
        self.log.commit(paths, self.texts, self.nodes)
        self.backend.commit(paths)
        for row, path in enumerate(paths):
            self.texts[row] += [self.nodes[row][node][0] for node in path]
            self.nodes[row] = []
        self._after("commit")

    def path(self, row: int, node: int) -> list[int]:
        """Region indices from a root of `row` down to `node`."""
        return path_to(self.nodes[row], node)

    def check_lengths(self) -> None:
        """The backend counts committed tokens as the lists do."""
        expected, lengths = [len(text) for text in self.texts], self.backend.lengths
        if callable(lengths):
            raise LawBroken(
                "lengths is a method; the loop reads backend.lengths without a call.",
                likely="the decorator @property is missing.",
            )
        if lengths != expected:
            name, _ = self.log.calls[-1] if self.log.calls else ("no call", None)
            raise LawBroken(
                f"lengths is {lengths} after {name}, and should be {expected}.",
                likely=_of_lengths(list(lengths), expected, name),
            )

    def check_state(self) -> None:
        """Drop all nodes and compare one step from the committed state of every row."""
        self.commit([[] for _ in self.texts])
        self.extend([[(1, -1), (2, -1)] for _ in self.texts])
        self.commit([[] for _ in self.texts])

    def _after(self, call: str) -> None:
        """Check the invariants that hold after every call."""
        if self._returned is not None:
            logits, unchanged = self._returned
            self._returned = None
            if not bool(((logits == unchanged) | (logits.isnan() & unchanged.isnan())).all()):
                raise LawBroken(
                    f"The logits that extend() returned were changed by the {call} that came after.",
                    likely="a buffer is returned that the next call writes to; return a copy of it.",
                )
        self.check_lengths()

    def _compare_first(self, logits: Tensor, rows: Sequence[Sequence[int]]) -> None:
        have = len(self.texts) - len(rows)
        for row, (of_row, text) in enumerate(zip(logits, rows, strict=True), have):
            off = difference(of_row, self.logits_after(list(text)).to(of_row.device))
            self.worst = max(self.worst, off)
            if off > self.tolerance:
                raise LawBroken(
                    f"first_logits() of row {row} of {len(self.texts)}, after {len(text)} tokens, is off by "
                    f"{off:.2e}.",
                    error=off,
                    likely="they belong to another token or row, or to padding; take the logits after the "
                    "last token of each row's own text.",
                )

    def _compare(self, logits: Tensor, row: int, column: int, start: int) -> None:
        node = start + column
        tokens = self.tokens(row, node)
        expected = self.logits_after(tokens).to(logits.device)
        assert expected.shape == logits.shape, (
            f"The oracle's logits have the shape {tuple(expected.shape)}, not {tuple(logits.shape)}."
        )
        off = difference(logits, expected)
        self.worst = max(self.worst, off)
        if off <= self.tolerance:
            return
        wrong = WrongLogits(self, row, column, start, logits.clone(), expected, off)
        raise wrong.explained() if self.explains else wrong

    def tokens(self, row: int, node: int) -> list[int]:
        """The committed tokens of `row` and those on the path of `node`."""
        return self.texts[row] + [self.nodes[row][above][0] for above in self.path(row, node)]


class WrongLogits(LawBroken):
    """An error: a node's logits do not match its text and path."""

    def __init__(
        self, mirror: Mirror, row: int, column: int, start: int, logits: Tensor, expected: Tensor, off: float
    ) -> None:
        nodes, node = list(mirror.nodes[row]), start + column
        tokens = ", ".join(logits_mistakes.shortened(mirror.tokens(row, node)))
        self.description = (
            f"node {node} of row {row} (after [{tokens}]) is off by {off:.2e}, more than "
            f"{mirror.tolerance:.0e}.\n"
            f"The row holds {len(mirror.texts[row])} committed tokens and the nodes "
            f"{logits_mistakes.drawn(nodes, path_to(nodes, node))}\n"
            f"came {logits_mistakes.numbers(logits)}, should be {logits_mistakes.numbers(expected)}"
        )
        super().__init__(self.description, error=off)
        self._mirror, self._position, self._logits, self._expected = (
            mirror,
            (row, column, start),
            logits,
            expected,
        )

    def explained(self) -> LawBroken:
        """Returns the error with the mistake that explains it; the backend loses its rows."""
        return LawBroken(self.description, error=self.error, likely=explained(self._why))

    def _why(self) -> str:
        mirror, (row, column, start) = self._mirror, self._position
        others = ((mistake, mirror.logits_after(tokens)) for mistake, tokens in self._others() if tokens)
        tolerance = mirror.tolerance
        if why := logits_mistakes.likely_mistake(self._logits, self._expected, others, tolerance=tolerance):
            return why
        suspect = WrongNode(
            mirror.backend,
            mirror.logits_after,
            mirror.log,
            row,
            column,
            list(mirror.texts[row]),
            list(mirror.nodes[row]),
            start + column,
            self._logits,
            tolerance,
        )
        return suspect.why()

    def _others(self) -> Iterator[tuple[str, list[int]]]:
        mirror, (row, column, start) = self._mirror, self._position
        text, nodes, node = mirror.texts[row], mirror.nodes[row], start + column
        tokens = [nodes[step][0] for step in path_to(nodes, node)]
        before = mirror.log.rows[row].before
        if before is not None:
            yield from logits_mistakes.after_another_commit(*before, tokens)
        yield from logits_mistakes.alternatives(text, nodes, node, start=start)
        for other, theirs in enumerate(mirror.texts):
            if other == row:
                continue
            yield f"rows are exchanged: row {row} continues the text of row {other}.", theirs + tokens
            if node < len(mirror.nodes[other]):
                yield (
                    f"rows are exchanged: row {row} has the answer of row {other}.",
                    mirror.tokens(other, node),
                )
        for gone in mirror.log.gone:
            yield f"row {row} continues the text of a row that was released.", gone + tokens


def _of_lengths(lengths: list[int], expected: list[int], call: str) -> str:
    """The mistake that wrong lengths look like."""
    if call == "release":
        return "another row than the named one was released, or the rows after it did not move up."
    if call == "commit" and len(lengths) == len(expected):
        return "the commit kept more or fewer nodes than its path names."
    if call == "extend":
        return "nodes are counted before they are committed."
    return "rows are appended after the others, in the order of the call."
