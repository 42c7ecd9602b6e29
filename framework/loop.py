"""The round: draft, score, verify, commit. Batch-first; one row is the common case."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from time import perf_counter
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import policy_states
from draftwood.constraints import ConstrainedRow
from draftwood.errors import InvalidDistribution, InvalidTree
from draftwood.forced_tokens import with_forced_tokens, without_forced_tokens
from draftwood.outcome import Outcome
from draftwood.prefixes import Path, Prefixes, RowText, paths_of
from draftwood.protocols import Drafter, StateBackend, TreePolicy, Verifier
from draftwood.randomness import Streams
from draftwood.request import Request, RequestLog
from draftwood.round_records import Round, RowRecord, TokenDetails, TracedTree
from draftwood.sampling import SamplingParams
from draftwood.stopping import StopConditions
from draftwood.tree import TokenTree


@attrs.define(eq=False)
class BatchRow:
    """One sequence being written.

    Attributes:
        index: its number in the call's input.
        root: the last committed token.
        policy: grows the trees of all rows.
        streams: the random numbers of this row alone.
        text: as processors are to see it; None where none reads it.
        constraint: what may be written, or None.
        policy_state: what the policy has learnt from this row.
        grown: the round's tree as the policy grew it, without forced spans; None before the first round.
    """

    index: int
    root: int
    policy: TreePolicy
    streams: Streams
    text: RowText | None = None
    constraint: ConstrainedRow | None = None
    policy_state: Any = attrs.field(
        default=attrs.Factory(lambda row: policy_states.first_state(row.policy), takes_self=True)
    )
    grown: TokenTree | None = None

    @property
    def reads_prefix(self) -> bool:
        """Whether a distribution depends on more than the logits."""
        return self.text is not None or self.constraint is not None

    def constrained(self, logits: Tensor, paths: Sequence[Path]) -> Tensor:
        """Logits `[n, vocab]` of the nodes behind `paths`, without what the constraint forbids."""
        if self.constraint is None:
            return logits
        return logits.masked_fill(~self.constraint.masks(paths).to(logits.device), -torch.inf)

    def observe(self, outcome: Outcome, tree: TokenTree) -> None:
        """Let the policy learn from what came of the nodes that it drafted in the round's `tree`."""
        assert self.grown is not None
        drafted = without_forced_tokens(outcome, self.grown.size) if self.grown.size < tree.size else outcome
        self.policy_state = policy_states.observe(self.policy, self.policy_state, drafted, self.grown)

    def prefixes(self, paths: Sequence[Path]) -> Prefixes | None:
        return None if self.text is None else Prefixes(self.text, paths)

    def commit(self, tokens: Sequence[int]) -> None:
        self.root = tokens[-1]
        if self.text is not None:
            self.text.append(tokens)
        if self.constraint is not None:
            self.constraint.commit(tokens)


@attrs.define(eq=False)
class RoundLoop:
    """The state of one `generate` call: rows that are still being written, and what drives them."""

    target: StateBackend
    drafter: Drafter
    verifier: Verifier
    sampling: SamplingParams
    draft_sampling: SamplingParams
    stops: StopConditions
    rows: list[BatchRow]
    trace: bool = False
    keep: TokenDetails = attrs.field(factory=TokenDetails)

    def run(self) -> Round:
        """One round over all rows; finished rows leave the loop and release their state."""
        started = perf_counter()
        trees, draft_calls, draft_seconds = self._draft()

        scoring = perf_counter()
        logits = self.target.extend(*pad([(t.tokens[: t.size], t.parents[: t.size]) for t in trees]))
        target_seconds = perf_counter() - scoring

        verifying = perf_counter()
        scores = [
            self._target_scores(row, t, logits[r])
            for r, (row, t) in enumerate(zip(self.rows, trees, strict=True))
        ]
        probs = [
            self._target_probs(row, row_scores) for row, row_scores in zip(self.rows, scores, strict=True)
        ]
        outcomes = self.verifier.verify_rows(trees, probs, [row.streams.verify for row in self.rows])
        verify_seconds = perf_counter() - verifying

        self.target.commit([outcome.path for outcome in outcomes])
        self.drafter.commit(outcomes)
        records = []
        for r, (row, tree, outcome) in enumerate(zip(self.rows, trees, outcomes, strict=True)):
            row.observe(outcome, tree)
            path = list(outcome.path)
            details = (
                self._details(logits[r, path], scores[r][path], outcome) if self.keep != _NO_DETAILS else {}
            )
            new, reason = self.stops.take(row.index, outcome.emitted, details.get("scores"))
            if row.reads_prefix:
                self._check_open(row, scores[r][path[: len(new)]])
            if reason is None:
                row.commit(new)
            details = {name: values[: len(new)] for name, values in details.items()}
            policy_state = row.policy_state
            records.append(
                RowRecord(row.index, new, outcome, tree.depth, reason, policy_state=policy_state, **details)
            )
        records, cut = self._ended_by_criteria(records)
        self._release([position for position, record in enumerate(records) if record.finished])
        seconds = perf_counter() - started

        if self.trace:  # what a trace costs is no part of the round
            traced = map(TracedTree.of, trees, probs, outcomes)
            records = [attrs.evolve(record, tree=tree) for record, tree in zip(records, traced, strict=True)]
        return Round(
            rows=tuple(records),
            draft_calls=draft_calls,
            seconds=seconds,
            draft_seconds=draft_seconds,
            target_seconds=target_seconds,
            verify_seconds=verify_seconds,
            cut=cut,
        )

    def _draft(self) -> tuple[list[TokenTree], int, float]:
        """Grow all rows' trees in lockstep; returns them, the draft calls and the time of the passes."""
        growing = [
            _Growing(policy_states.grow(row.policy, row.root, row.streams.draft, row.policy_state))
            for row in self.rows
        ]
        for growth in growing:
            growth.advance(None)
        calls, seconds = 0, 0.0
        while any(growth.request for growth in growing):
            calling = perf_counter()
            logits = self.drafter.distributions([growth.request for growth in growing])
            seconds += perf_counter() - calling
            calls += 1
            for row, growth, row_logits in zip(self.rows, growing, logits, strict=True):
                if growth.request is not None:
                    growth.advance(self._draft_probs(row, growth, row_logits[: len(growth.request)]))
        trees = [self._finished(row, growth) for row, growth in zip(self.rows, growing, strict=True)]
        return trees, calls, seconds

    def _finished(self, row: BatchRow, growth: _Growing) -> TokenTree:
        # Nodes that the limit would cut anyway are not worth a pass, and may lie beyond the context.
        room = self.stops.room(row.index) - 1
        tree = growth.finished_tree(self.target.vocab_size).truncated(room)
        row.grown = tree
        if row.constraint is None or growth.probs is None:
            return tree
        return with_forced_tokens(tree, row.constraint, laws=row.policy.laws, like=growth.probs).truncated(
            room
        )

    def _draft_probs(self, row: BatchRow, growth: _Growing, logits: Tensor) -> Tensor:
        paths = growth.paths() if row.reads_prefix else ()
        prefixes = row.prefixes(paths)
        drafters = logits.unbind(1) if logits.dim() == 3 else [logits]
        probs = [
            self.draft_sampling.distribution(
                row.constrained(drafter_logits, paths), prefixes, may_be_empty=True
            )
            for drafter_logits in drafters
        ]
        return probs[0] if logits.dim() == 2 else torch.stack(probs, 1)

    def _target_scores(self, row: BatchRow, tree: TokenTree, logits: Tensor) -> Tensor:
        paths: Sequence[Path] = ()
        if row.reads_prefix:
            paths = paths_of(tree.tokens[: tree.size].tolist(), tree.parents[: tree.size].tolist())
        return self.sampling.scores(row.constrained(logits[: tree.size], paths), row.prefixes(paths))

    def _target_probs(self, row: BatchRow, scores: Tensor) -> Tensor:
        if not row.reads_prefix:
            return self.sampling.probabilities(scores)
        probs = self.sampling.probabilities(scores, may_be_empty=True)
        # Behind an end of text nothing may be left, and what is drawn there is not kept.
        probs[:, 0] += probs.sum(-1) == 0
        return probs

    def _check_open(self, row: BatchRow, scores: Tensor) -> None:
        """Refuse kept tokens that were drawn where processors and constraint leave none, as sampling does."""
        if self.sampling.temperature and bool((scores.amax(-1) == -torch.inf).any()):
            raise InvalidDistribution(
                f"Processors and constraint leave row {row.index} no token to go on with; loosen one, "
                "or let them end the text."
            )

    def _details(self, logits: Tensor, scores: Tensor, outcome: Outcome) -> dict[str, Any]:
        """What `keep` asks for of the emitted tokens, from the rows `[tokens, vocab]` of the path."""
        details: dict[str, Any] = {}
        if self.keep.logits:
            details["logits"] = logits.float().clone()
        if self.keep.scores:
            details["scores"] = scores.clone()
        if self.keep.logprobs:
            emitted = torch.tensor(outcome.emitted, device=logits.device).unsqueeze(1)
            logprobs = logits.float().log_softmax(-1).gather(1, emitted).squeeze(1)
            details["logprobs"] = tuple(logprobs.tolist())
        return details

    def _ended_by_criteria(self, records: list[RowRecord]) -> tuple[list[RowRecord], dict[int, int]]:
        """The records without what criteria cut from them, and the rows whose end lies further back."""
        ends = self.stops.ask()
        for position, record in enumerate(records):
            if record.row in ends:
                before = self.stops.written[record.row] - len(record.tokens)
                left = max(ends[record.row] - before, 0)
                if ends[record.row] >= before:
                    del ends[record.row]
                records[position] = record.shortened(left, "criteria")
        return records, ends

    def _release(self, positions: list[int]) -> None:
        if positions:
            self.target.release(positions)
            self.drafter.release(positions)
            self.rows = [row for position, row in enumerate(self.rows) if position not in positions]


_NO_DETAILS = TokenDetails()


@attrs.define(eq=False)
class _Growing:
    """A policy's generator in progress, with the nodes that it has asked for so far."""

    generator: Generator[Request, Tensor, TokenTree]
    request: Request | None = None
    tree: TokenTree | None = None
    asked: RequestLog = attrs.field(factory=RequestLog)
    probs: Tensor | None = None  # of the last request

    def advance(self, probs: Tensor | None) -> None:
        """Answer the request with `probs` (None starts the generator) and take the next one."""
        self.probs = probs
        try:
            self.request = next(self.generator) if probs is None else self.generator.send(probs)
        except StopIteration as finished:
            self.request, self.tree = None, finished.value

    def paths(self) -> list[Path]:
        """The paths of the nodes of the current request."""
        assert self.request is not None
        return [self.asked.path(node) for node in self.asked.take(self.request)]

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
