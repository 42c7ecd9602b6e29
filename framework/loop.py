"""The round: draft, score, verify, commit. Batch-first; one row is the common case."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import perf_counter

import attrs
import torch
from torch import Tensor

from draftwood.errors import InvalidTree
from draftwood.protocols import Drafter, Request, StateBackend, TreePolicy, Verifier
from draftwood.randomness import Streams
from draftwood.records import Round, RowRecord, TracedTree
from draftwood.sampling import SamplingParams
from draftwood.stopping import StopConditions
from draftwood.tree import TokenTree


@attrs.define(eq=False)
class Row:
    """One sequence being written.

    Attributes:
        index: place in the call's input.
        text: committed tokens; the last one is the root.
        policy: this row's own policy.
        streams: this row's own chance.
    """

    index: int
    text: list[int]
    policy: TreePolicy
    streams: Streams

    @property
    def root(self) -> int:
        return self.text[-1]


@attrs.define(eq=False)
class RoundLoop:
    """The state of one `generate` call: rows that are still being written, and what drives them."""

    target: StateBackend
    drafter: Drafter
    verifier: Verifier
    sampling: SamplingParams
    draft_sampling: SamplingParams
    stops: StopConditions
    rows: list[Row]
    trace: bool = False

    def run(self) -> Round:
        """One round over all rows; finished rows leave the loop and release their state."""
        started = perf_counter()
        trees, draft_calls, draft_seconds = self._draft()

        scoring = perf_counter()
        logits = self.target.extend(*pad([(t.tokens[: t.size], t.parents[: t.size]) for t in trees]))
        target_seconds = perf_counter() - scoring

        verifying = perf_counter()
        probs = [
            self._target_probs(row, t, logits[r])
            for r, (row, t) in enumerate(zip(self.rows, trees, strict=True))
        ]
        outcomes = self.verifier.verify_rows(trees, probs, [row.streams.verify for row in self.rows])
        verify_seconds = perf_counter() - verifying

        self.target.commit([outcome.path for outcome in outcomes])
        self.drafter.commit(outcomes)
        records = []
        for row, tree, outcome in zip(self.rows, trees, outcomes, strict=True):
            row.policy.observe(outcome)
            new, reason = self.stops.cut(row.index, row.text, outcome.emitted)
            row.text.extend(new)
            records.append(RowRecord(row.index, new, outcome, tree.depth, reason))
        self._release([place for place, record in enumerate(records) if record.finished])
        seconds = perf_counter() - started

        if self.trace:  # what a trace costs is no part of the round
            traced = map(TracedTree.of, trees, probs, outcomes)
            records = [attrs.evolve(one, tree=tree) for one, tree in zip(records, traced, strict=True)]
        return Round(
            rows=tuple(records),
            draft_calls=draft_calls,
            seconds=seconds,
            draft_seconds=draft_seconds,
            target_seconds=target_seconds,
            verify_seconds=verify_seconds,
        )

    def _draft(self) -> tuple[list[TokenTree], int, float]:
        """Grow all rows' trees in lockstep; returns them, the draft calls and the time of the passes."""
        growing = [_Growing(row.policy.grow(row.root, row.streams.draft), row.text) for row in self.rows]
        for one in growing:
            one.advance(None)
        calls, seconds = 0, 0.0
        while any(one.request for one in growing):
            calling = perf_counter()
            logits = self.drafter.distributions([one.request for one in growing])
            seconds += perf_counter() - calling
            calls += 1
            for one, row_logits in zip(growing, logits, strict=True):
                if one.request is not None:
                    one.advance(self._draft_probs(one, row_logits[: len(one.request)]))
        # Nodes that the limit would cut anyway are not worth a pass, and may lie beyond the context.
        return (
            [
                one.finished_tree(self.target.vocab_size).truncated(
                    self.stops.limit[row.index] - len(row.text) - 1
                )
                for one, row in zip(growing, self.rows, strict=True)
            ],
            calls,
            seconds,
        )

    def _draft_probs(self, one: _Growing, logits: Tensor) -> Tensor:
        contexts = one.contexts() if self.draft_sampling.reads_prefix else None
        if logits.dim() == 2:
            return self.draft_sampling.distribution(logits, contexts, may_be_empty=True)
        drafters = logits.unbind(1)
        return torch.stack(
            [self.draft_sampling.distribution(one, contexts, may_be_empty=True) for one in drafters],
            1,
        )

    def _target_probs(self, row: Row, tree: TokenTree, logits: Tensor) -> Tensor:
        contexts = None
        if self.sampling.reads_prefix:
            tokens = tree.tokens.tolist()
            contexts = [
                torch.tensor(row.text[:-1] + [tokens[v] for v in tree.path(node)])
                for node in range(tree.size)
            ]
        return self.sampling.distribution(logits[: tree.size], contexts)

    def _release(self, places: list[int]) -> None:
        if places:
            self.target.release(places)
            self.drafter.release(places)
            self.rows = [row for place, row in enumerate(self.rows) if place not in places]


@attrs.define(eq=False)
class _Growing:
    """A policy's generator in progress, with the nodes it has asked for so far."""

    generator: Generator[Request, Tensor, TokenTree]
    text: Sequence[int]
    request: Request | None = None
    tree: TokenTree | None = None
    asked: list[tuple[int, int]] = attrs.field(factory=list)  # token and parent of every numbered node

    def advance(self, probs: Tensor | None) -> None:
        """Answer the request with `probs` (None starts the generator) and take the next one."""
        try:
            self.request = next(self.generator) if probs is None else self.generator.send(probs)
        except StopIteration as finished:
            self.request, self.tree = None, finished.value

    def contexts(self) -> list[Tensor]:
        """The text before each prediction of the current request."""
        assert self.request is not None
        start = len(self.asked)
        self.asked.extend(zip(self.request.tokens.tolist(), self.request.parents.tolist(), strict=True))
        return [torch.tensor([*self.text[:-1], *self._path(n)]) for n in range(start, len(self.asked))]

    def _path(self, number: int) -> list[int]:
        tokens = []
        while number >= 0:
            token, number = self.asked[number]
            tokens.append(token)
        return tokens[::-1]

    def finished_tree(self, vocab_size: int) -> TokenTree:
        if not isinstance(self.tree, TokenTree):
            raise InvalidTree(
                f"A policy's `grow` returned {type(self.tree).__name__}; it must return a TokenTree."
            )
        return self.tree.validated(vocab_size)


def pad(rows: Sequence[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor, list[int]]:
    """Ragged (tokens, parents) of every row as `[rows, nodes]` tensors and the valid counts."""
    counts = [len(tokens) for tokens, _ in rows]
    if len(rows) == 1:
        tokens, parents = rows[0]
        return tokens.unsqueeze(0), parents.unsqueeze(0), counts
    tokens = torch.nn.utils.rnn.pad_sequence([t for t, _ in rows], batch_first=True)
    parents = torch.nn.utils.rnn.pad_sequence([p for _, p in rows], batch_first=True, padding_value=-1)
    return tokens, parents, counts
