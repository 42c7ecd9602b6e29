"""A drafter with a mirror of its token lists; answers are compared with an oracle or with single requests."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence

import attrs
import torch
from torch import Tensor

from draftwood.protocols import Drafter
from draftwood.testing.checks.input_dependence import explained
from draftwood.testing.diagnosis import logits_mistakes
from draftwood.testing.diagnosis.law_broken import LawBroken
from draftwood.testing.diagnosis.logits_mistakes import Node, difference, path_to
from draftwood.testing.models.oracles import LogitsAfter, Text
from draftwood.trees.outcome import Outcome
from draftwood.trees.request import Request

TOLERANCE = 1e-4
"""Largest difference of two logits that should be equal; batches of another size round otherwise."""

Before = tuple[list[int], list[Node], list[int]]
"""A row's text, nodes and accepted path before its last commit."""


_NOTHING = Outcome((), (), extra=0, bonus=False, drafted=0)


@attrs.frozen(eq=False)
class Answer:
    """A drafter's answer about a node.

    Attributes:
        row: number of its row.
        rounds: commits before it.
        texts: committed tokens of all rows.
        nodes: the nodes that its row had requested by the end of the call, the root first.
        node: number of the node among them.
        start: how many there were before the call.
        before: the last commit's; None in the first round.
        extra: the token after that commit's path; None in the first round.
        requested: all requests of the rows up to the end of the call.
        gone: texts of released rows, and their requests.
        logits: `[vocab]`, or `[drafters, vocab]`.
        copied: for a drafter that remembers, the logits of a copy made before the round; else None.
    """

    row: int
    rounds: int
    texts: list[Text]
    nodes: list[Node]
    node: int
    start: int
    before: Before | None
    extra: int | None
    requested: list[list[Node]]
    gone: list[tuple[list[int], list[Node]]]
    logits: Tensor
    copied: Tensor | None = None

    @property
    def tokens(self) -> list[int]:
        """On the node's path, the root first."""
        return [self.nodes[index][0] for index in path_to(self.nodes, self.node)]

    def others(self) -> Iterator[tuple[str, list[int]]]:
        """Mistakes, and the text that each would answer for."""
        text = self.texts[self.row]
        if self.before is not None and self.extra is not None:
            mistake = "the token after the accepted path was committed too; it is the next root."
            yield mistake, [*text, self.extra, *self.tokens]
            yield from logits_mistakes.after_another_commit(*self.before, self.tokens)
        yield from logits_mistakes.alternatives(text, self.nodes, self.node, start=self.start)
        for other, theirs in enumerate(self.texts):
            if other == self.row:
                continue
            mistake = f"rows are exchanged: row {self.row} continues the text of row {other}."
            yield mistake, theirs + self.tokens
            if self.node < len(self.requested[other]):
                path = path_to(self.requested[other], self.node)
                mistake = f"rows are exchanged: row {self.row} has the answer of row {other}."
                yield mistake, theirs + [self.requested[other][index][0] for index in path]
        for old, nodes in self.gone:
            mistake = f"row {self.row} continues the text of a row that was released."
            yield mistake, old + self.tokens
            both = nodes + self.nodes[self.start :]
            if all(parent < index for index, (_, parent) in enumerate(both)):
                path = path_to(both, len(nodes) + self.node - self.start)
                yield mistake, old + [both[index][0] for index in path]


@attrs.define
class DrafterMirror:
    """A drafter, without rows at first, and the tokens of its rows; every answer is kept.

    Attributes:
        drafter: the drafter under test.
        texts: committed tokens of every row.
        nodes: the requested nodes of every row in this round.
        answers: so far.
    """

    drafter: Drafter
    texts: list[Text] = attrs.field(factory=list)
    nodes: list[list[Node]] = attrs.field(factory=list)
    answers: list[Answer] = attrs.field(factory=list)
    _before: list[Before | None] = attrs.field(factory=list, init=False)
    _gone: list[tuple[list[int], list[Node]]] = attrs.field(factory=list, init=False)
    _extra: int | None = attrs.field(default=None, init=False)
    _rounds: int = attrs.field(default=0, init=False)
    _returned: tuple[Tensor, Tensor] | None = attrs.field(default=None, init=False)
    # Of a drafter that remembers, as it was before the round.
    _as_it_was: Drafter | None = attrs.field(default=None, init=False)

    def prefill(self, texts: Sequence[Sequence[int]]) -> None:
        """Append rows."""
        self.drafter.prefill([torch.tensor(text, dtype=torch.int64) for text in texts])
        self.texts += [Text(text, len(text) + 1) for text in texts]
        self.nodes += [[] for _ in texts]
        self._before += [None for _ in texts]

    def release(self, rows: Sequence[int]) -> None:
        """Forget rows."""
        self.drafter.release(rows)
        if self._as_it_was is not None:
            self._as_it_was.release(rows)
        self._gone += [(self.texts[row], self.nodes[row]) for row in rows]
        keep = [row for row in range(len(self.texts)) if row not in rows]
        self.texts = [self.texts[row] for row in keep]
        self.nodes = [self.nodes[row] for row in keep]
        self._before = [self._before[row] for row in keep]

    def ask(self, new: Sequence[Sequence[Node] | None]) -> Tensor:
        """Ask about new nodes of every row, None where a row asks for nothing."""
        vocab = self.drafter.vocab_size
        asked = [None if nodes is None else [(t % vocab, parent) for t, parent in nodes] for nodes in new]
        requests = [None if nodes is None else _request(nodes) for nodes in asked]
        if self.drafter.remembers and self._as_it_was is None:
            self._as_it_was = copy.deepcopy(self.drafter)
        logits = self.drafter.distributions(requests)
        texts, asked_before = [text[:] for text in self.texts], len(self.answers)
        for row, (nodes, request) in enumerate(zip(asked, requests, strict=True)):
            if nodes is None or request is None:
                continue
            if list(zip(request.tokens.tolist(), request.parents.tolist(), strict=True)) != nodes:
                raise LawBroken(
                    "distributions() writes to the tokens or parents of a request.",
                    likely="they are shifted or padded in place; do it on a copy.",
                )
            start = len(self.nodes[row])
            self.nodes[row] += nodes
            for column in range(len(nodes)):
                logits_of_node = logits[row, column].clone()
                answer = Answer(
                    row,
                    self._rounds,
                    texts,
                    list(self.nodes[row]),
                    start + column,
                    start,
                    self._before[row],
                    self._extra,
                    [],
                    list(self._gone),
                    logits_of_node,
                )
                self.answers.append(attrs.evolve(answer, copied=self._asked_alone(row, answer.tokens)))
        requested = [list(nodes) for nodes in self.nodes]
        for index in range(asked_before, len(self.answers)):
            self.answers[index] = attrs.evolve(self.answers[index], requested=requested)
        self._unchanged()
        self._returned = logits, logits.clone()
        return logits

    def commit(self, accepted: Sequence[Sequence[int]], *, extra: int = 1) -> None:
        """Accept these nodes of every row, the root first.

        A last number beyond the nodes asked for is a leaf that was never asked about, with `extra` + 1 as its
        token. The outcomes say `extra` as the next root.
        """
        vocab = self.drafter.vocab_size
        outcomes = []
        for row, path in enumerate(accepted):
            nodes = list(self.nodes[row])
            if path and path[-1] >= len(nodes):
                nodes.append(((extra + 1) % vocab, path[-2] if len(path) > 1 else -1))
            indices = [min(index, len(nodes) - 1) for index in path]
            tokens = [nodes[index][0] for index in indices]
            outcomes.append(
                Outcome(indices, tokens, extra=extra % vocab, bonus=False, drafted=max(len(nodes) - 1, 0))
            )
            self._before[row] = (self.texts[row][:], nodes, indices)
            self.texts[row] = self.texts[row] + tokens
            self.nodes[row] = []
        self.drafter.commit(outcomes)
        self._as_it_was = None
        self._rounds, self._extra = self._rounds + 1, extra % vocab
        self._unchanged()

    def _asked_alone(self, row: int, path: Sequence[int]) -> Tensor | None:
        """Returns a remembering drafter's logits for a path if nothing else were requested in the round."""
        drafter, rows = self._as_it_was, len(self.nodes)
        if drafter is None:
            return None
        for depth, token in enumerate(path):
            request = _request([(token, depth - 1)])
            logits = drafter.distributions([request if other == row else None for other in range(rows)])
        drafter.commit([_NOTHING] * rows)
        return logits[row, 0].clone()

    def _unchanged(self) -> None:
        if self._returned is not None:
            logits, unchanged = self._returned
            if not bool(((logits == unchanged) | (logits.isnan() & unchanged.isnan())).all()):
                raise LawBroken(
                    "The logits that distributions() returned were changed by the next call.",
                    likely="a buffer is returned that the next call writes to; return a copy of it.",
                )

    def compare(self, oracle: LogitsAfter | None) -> None:
        """Compare all answers with the oracle, or with the drafter's own answers to single paths.

        A single path is requested by itself, one node per call. The drafter loses its rows.

        Raises:
            LawBroken: the first that differs, with the likely mistake.
        """
        self.drafter.release()
        for answer in self.answers:
            text = answer.texts[answer.row]
            if answer.copied is not None:
                self._compare_with_itself(answer, answer.copied)
                continue
            expected = oracle(text + answer.tokens) if oracle else alone(self.drafter, text, answer.tokens)
            expected = expected.to(answer.logits.device)
            assert expected.shape == answer.logits.shape, (
                f"A node's logits have the shape {tuple(answer.logits.shape)}, not {tuple(expected.shape)}."
            )
            if (off := difference(answer.logits, expected)) > TOLERANCE:
                raise self._broken(answer, expected, off, oracle)

    def _compare_with_itself(self, answer: Answer, alone: Tensor) -> None:
        if (off := difference(answer.logits, alone)) > TOLERANCE:
            raise LawBroken(
                f"The logits of node {answer.node} of row {answer.row} of {len(answer.texts)}, after "
                f"{answer.rounds} commits, change if nothing else is requested in this round: off by "
                f"{off:.2e}.",
                error=off,
                likely="it remembers requests, not only what is committed; learn only in commit().",
            )

    def _broken(self, answer: Answer, expected: Tensor, off: float, oracle: LogitsAfter | None) -> LawBroken:
        drafter = self.drafter

        def why() -> str:
            others = (
                (mistake, oracle(text) if oracle else alone(drafter, text[:-1], text[-1:]))
                for mistake, text in answer.others()
                if text
            )
            likely = logits_mistakes.likely_mistake(answer.logits, expected, others, tolerance=TOLERANCE)
            text = answer.texts[answer.row]
            if not likely and difference(alone(drafter, text, answer.tokens), expected) > TOLERANCE:
                if oracle:
                    return "the same text and path are also wrong in a single row: look at that row's answer."
                return "something is remembered beyond release(), or answers are random."
            return likely

        text = ", ".join(logits_mistakes.shortened(answer.texts[answer.row]))
        against = "the model's" if oracle else "its own answer to a request for only that path"
        return LawBroken(
            f"The logits of node {answer.node} of row {answer.row} of {len(answer.texts)}, after "
            f"{answer.rounds} commits, are not {against}: off by {off:.2e}.\n"
            f"The text is [{text}], the nodes are "
            f"{logits_mistakes.drawn(answer.nodes, path_to(answer.nodes, answer.node))}\n"
            f"came {logits_mistakes.numbers(answer.logits)}, should be {logits_mistakes.numbers(expected)}",
            error=off,
            likely=explained(why),
        )


def alone(drafter: Drafter, text: Sequence[int], path: Sequence[int]) -> Tensor:
    """Returns the logits of a drafter without rows after `text` and a path, requested node by node."""
    drafter.prefill([torch.tensor(text, dtype=torch.int64)])
    try:
        for depth, token in enumerate(path):
            logits = drafter.distributions([_request([(token, depth - 1)])])
        return logits[0, 0].clone()
    finally:
        drafter.release()


def _request(nodes: Sequence[Node]) -> Request:
    return Request(torch.tensor([t for t, _ in nodes]), torch.tensor([parent for _, parent in nodes]))
