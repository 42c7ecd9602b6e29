"""The round: draft, score, verify, commit. Batch-first; one row is the common case."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from draftwood import policy_states
from draftwood.batch_row import BatchRow
from draftwood.errors import InvalidDistribution
from draftwood.forced_tokens import with_forced_tokens
from draftwood.outcome import Outcome
from draftwood.prefixes import Path, paths_of
from draftwood.protocols import Drafter, StateBackend, Verifier
from draftwood.request import RequestLog, Requests
from draftwood.round_records import Round, RowRecord, TokenDetails, TracedTree
from draftwood.row_growth import RowGrowth
from draftwood.running_rows import NOTHING, RunningRows
from draftwood.sampling import SamplingParams
from draftwood.scratch import Scratch
from draftwood.stopping import StopConditions
from draftwood.target_rows import TargetRows
from draftwood.tree import TokenTree, TreeBuilder
from draftwood.tree_batch import TreeBatch

READ_AT_ONCE = 64
"""Tokens of a text's next part in one pass, as each has logits there."""


@attrs.define(eq=False)
class Verified:
    """What verification made of the trees of some rows.

    Attributes:
        trees: one a row.
        probs: the target's distributions after their nodes.
        outcomes: of rows that stay, only what of it they keep.
        records: one a row.
        cut: as in `Round`.
        seconds: that verification took.
    """

    trees: Sequence[TokenTree]
    probs: Sequence[Tensor]
    outcomes: list[Outcome]
    records: list[RowRecord]
    cut: dict[int, int]
    seconds: float


@attrs.define(eq=False)
class RoundLoop:
    """Rows that are being written, and what drives them.

    Attributes:
        rows: those that are running, in the order of their states.
        held: all rows that backends and drafter hold: these, and the idle ones.
    """

    target: StateBackend
    drafter: Drafter
    verifier: Verifier
    sampling: SamplingParams
    draft_sampling: SamplingParams
    stops: StopConditions
    rows: list[BatchRow] = attrs.field(factory=list)
    trace: bool = False
    keep: TokenDetails = attrs.field(factory=TokenDetails)
    held: list[BatchRow] = attrs.field(init=False)
    _scratch: Scratch = attrs.field(factory=Scratch, init=False)

    def __attrs_post_init__(self) -> None:
        self.held = list(self.rows)

    def run(self) -> Round:
        """One round over all running rows; finished rows leave the loop and release their state."""
        started = perf_counter()
        self._scratch.reset()
        batch = self.batch(self.rows)
        trees, draft_calls, draft_seconds = self._draft(batch)
        if self.target.ranks is not None:
            trees = self.target.ranks.agreed_trees(trees)

        scoring = perf_counter()
        logits = batch.of(self.target.extend(*batch.nodes(*as_batch(trees))))
        target_seconds = perf_counter() - scoring

        verified = self._verified(self.rows, trees, logits)
        self.target.commit(batch.spread([outcome.path for outcome in verified.outcomes], ()))
        self.drafter.commit(batch.spread(verified.outcomes, NOTHING))
        seconds = self._settled(verified, started, drafter=True)
        return self._round(
            verified,
            seconds=seconds,
            draft_calls=draft_calls,
            draft_seconds=draft_seconds,
            target_seconds=target_seconds,
        )

    def join(self, rows: Sequence[BatchRow], prompts: Sequence[Tensor]) -> Round:
        """First tokens of new rows, by the logits that come with the prefill of their prompts `[length]`.

        Before the next round the drafter is to be given the prompts of those that go on.
        """
        started = perf_counter()
        logits = self.target.first_logits(prompts)
        target_seconds = perf_counter() - started
        self.rows += rows
        self.held += rows
        verified = self._verified(rows, [root_alone(row) for row in rows], logits.unsqueeze(1))
        seconds = self._settled(verified, started, drafter=False)
        return self._round(verified, seconds=seconds, target_seconds=target_seconds, prefill=True)

    def resume(self, rows: Sequence[BatchRow], texts: Sequence[Tensor]) -> Round:
        """First tokens of rows that waited, behind `texts` `[length]`, more of their text."""
        started = perf_counter()
        batch = self.batch(rows)
        chains = [torch.cat([torch.tensor([row.root]), text]) for row, text in zip(rows, texts, strict=True)]
        logits = self._read(batch, chains)
        target_seconds = perf_counter() - started
        for row, text in zip(rows, texts, strict=True):
            row.read(text.tolist())
        self.rows = [row for row in self.held if not row.idle]
        verified = self._verified(rows, [root_alone(row) for row in rows], logits.unsqueeze(1))
        read = [
            Outcome(range(len(chain)), chain.tolist(), extra=outcome.extra, bonus=False, drafted=0)
            for chain, outcome in zip(chains, verified.outcomes, strict=True)
        ]
        self.drafter.commit(batch.spread(read, NOTHING))
        seconds = self._settled(verified, started, drafter=True)
        return self._round(verified, seconds=seconds, target_seconds=target_seconds, prefill=True)

    def _read(self, batch: RunningRows, chains: Sequence[Tensor]) -> Tensor:
        """Commit a chain `[length]` a row of `batch`; logits `[rows, vocab]` behind their last tokens."""
        lengths = [len(chain) for chain in chains]
        padded = pad_sequence(list(chains), batch_first=True)
        logits: list[Tensor] = [padded] * len(chains)
        for start in range(0, padded.shape[1], READ_AT_ONCE):
            tokens = padded[:, start : start + READ_AT_ONCE]
            counts = [min(max(length - start, 0), tokens.shape[1]) for length in lengths]
            parents = torch.arange(-1, tokens.shape[1] - 1).repeat(len(chains), 1)
            scored = batch.of(self.target.extend(*batch.nodes(tokens, parents, counts)))
            self.target.commit(batch.spread([range(count) for count in counts], ()))
            for row, (length, count) in enumerate(zip(lengths, counts, strict=True)):
                if count and start + count == length:
                    logits[row] = scored[row, count - 1].clone()
        return torch.stack(logits)

    def batch(self, rows: Sequence[BatchRow]) -> RunningRows:
        """The positions of `rows` among all that are held."""
        if len(rows) == len(self.held):
            return RunningRows(tuple(range(len(rows))), len(rows))
        chosen = set(map(id, rows))
        return RunningRows(
            tuple(position for position, row in enumerate(self.held) if id(row) in chosen), len(self.held)
        )

    def release(self, rows: Sequence[BatchRow], *, drafter: bool = True) -> None:
        """Forget these rows and their states; the drafter's too where it has them."""
        if not rows:
            return
        positions = self.batch(rows).positions
        self.target.release(positions)
        if drafter:
            self.drafter.release(positions)
        gone = set(map(id, rows))
        self.rows = [row for row in self.rows if id(row) not in gone]
        self.held = [row for row in self.held if id(row) not in gone]

    def _verified(self, rows: Sequence[BatchRow], trees: Sequence[TokenTree], logits: Tensor) -> Verified:
        """Verify the trees of `rows` by logits `[rows, nodes, vocab]`, and take what is accepted as text."""
        started = perf_counter()
        scores, probs = self._scored(rows, trees, logits)
        outcomes = self._outcomes(rows, trees, probs)
        seconds = perf_counter() - started
        records = []
        for r, (row, tree, outcome) in enumerate(zip(rows, trees, outcomes, strict=True)):
            row.observe(outcome, tree)
            path = list(outcome.path)
            details: dict[str, Any] = {}
            if self.keep != _NO_DETAILS:
                of_path = self.sampling.scores(logits[r, path]) if scores is None else scores[r][path]
                details = self._details(logits[r, path], of_path, outcome)
            new, reason = self.stops.take(row.index, outcome.emitted, details.get("scores"))
            if scores is not None and row.reads_prefix:
                self._check_open(row, scores[r][path[: len(new)]])
            details = {name: values[: len(new)] for name, values in details.items()}
            policy_state = row.policy_state
            records.append(
                RowRecord(row.index, new, outcome, tree.depth, reason, policy_state=policy_state, **details)
            )
        records, cut = self._ended_by_criteria(records)
        for position, (row, record) in enumerate(zip(rows, records, strict=True)):
            if record.finished is None or row.kept:
                row.commit(record.tokens)
                outcomes[position] = outcomes[position].shortened(len(record.tokens))
        return Verified(trees, probs, outcomes, records, cut, seconds)

    def _outcomes(
        self, rows: Sequence[BatchRow], trees: Sequence[TokenTree], probs: Sequence[Tensor]
    ) -> list[Outcome]:
        """What the verifier accepts; where several processes run the target, the first one's."""
        ranks, outcomes = self.target.ranks, list[Outcome]()
        if ranks is None or ranks.first:
            outcomes = self.verifier.verify_rows(trees, probs, [row.streams.verify for row in rows])
        return outcomes if ranks is None else ranks.agreed(outcomes)

    def _settled(self, verified: Verified, started: float, *, drafter: bool) -> float:
        """Let finished rows leave, or wait where they are kept; the seconds since `started`."""
        finished = {record.row for record in verified.records if record.finished}
        if finished:
            ended = [row for row in self.rows if row.index in finished]
            self.release([row for row in ended if not row.kept], drafter=drafter)
            for row in ended:
                row.idle = row.kept
            self.rows = [row for row in self.rows if not row.idle]
        return perf_counter() - started

    def _round(
        self,
        verified: Verified,
        *,
        seconds: float,
        target_seconds: float,
        draft_calls: int = 0,
        draft_seconds: float = 0.0,
        prefill: bool = False,
    ) -> Round:
        records = verified.records
        if self.trace:  # what a trace costs is no part of the round
            traced = map(
                TracedTree.of, verified.trees, verified.probs, [record.outcome for record in records]
            )
            records = [attrs.evolve(record, tree=tree) for record, tree in zip(records, traced, strict=True)]
        return Round(
            rows=tuple(records),
            draft_calls=draft_calls,
            seconds=seconds,
            draft_seconds=draft_seconds,
            target_seconds=target_seconds,
            verify_seconds=verified.seconds,
            cut=verified.cut,
            prefill=prefill,
        )

    def _draft(self, batch: RunningRows) -> tuple[Sequence[TokenTree], int, float]:
        """Grow all rows' trees; returns them, the draft's passes and their time."""
        if (planned := self._planned(batch)) is not None:
            return planned
        growing = policy_states.grow_rows(
            self.rows[0].policy,
            [row.root for row in self.rows],
            [row.streams.draft for row in self.rows],
            [row.policy_state for row in self.rows],
        )
        logs = [RequestLog() for _ in self.rows] if _reads_prefix(self.rows) else []
        calls, seconds, probs = 0, 0.0, None
        requests, trees = _advanced(growing, None)
        while requests is not None:
            calling = perf_counter()
            logits = batch.of(self.drafter.distributions(batch.requests(requests)))
            seconds += perf_counter() - calling
            calls += 1
            probs = self._draft_probs(requests, logits, logs)
            requests, trees = _advanced(growing, probs)
        return self._finished(trees, probs), calls, seconds

    def _planned(self, batch: RunningRows) -> tuple[Sequence[TokenTree], int, float] | None:
        """What `_draft` returns, where the drafter grows all levels in one go; None where it does not."""
        policy = self.rows[0].policy
        plan = policy_states.level_plan(policy)
        if plan is None or not (batch.all and self.draft_sampling.is_softmax) or _reads_prefix(self.rows):
            return None
        by_call = policy_states.defined_by(self.drafter, "distributions")
        if by_call < policy_states.defined_by(self.drafter, "planned_levels"):
            return None
        roots, calling = [row.root for row in self.rows], perf_counter()
        levels = self.drafter.planned_levels(roots, plan, temperature=self.draft_sampling.temperature)
        if levels is None:
            return None
        seconds = perf_counter() - calling
        return self._finished(policy.planned_trees(roots, levels), None), len(levels.widths), seconds

    def _finished(self, trees: Sequence[TokenTree], probs: Tensor | None) -> Sequence[TokenTree]:
        """The trees that the target scores; `probs` are those of the last request."""
        # Nodes that the limit would cut anyway are not worth a pass, and may lie beyond the context.
        rooms = [self.stops.room(row.index) - 1 for row in self.rows]
        vocab_size = self.target.vocab_size
        if isinstance(trees, TreeBatch):
            trees = trees.validated(vocab_size).truncated(rooms)
        else:
            trees = [
                tree.validated(vocab_size).truncated(room) for tree, room in zip(trees, rooms, strict=True)
            ]
        if self.rows[0].policy.learns:
            for row, tree in zip(self.rows, trees, strict=True):
                row.grown = tree
        if probs is None or not any(row.constraint for row in self.rows):
            return trees
        return [
            tree
            if row.constraint is None
            else with_forced_tokens(tree, row.constraint, laws=row.policy.laws, like=probs).truncated(room)
            for row, tree, room in zip(self.rows, trees, rooms, strict=True)
        ]

    def _draft_probs(self, requests: Requests, logits: Tensor, logs: Sequence[RequestLog]) -> Tensor:
        """What the policy receives for `logits` `[rows, nodes, ..., vocab]`."""
        if not logs:
            return self.draft_sampling.proposals(logits, self._scratch)
        probs = torch.zeros_like(logits, dtype=torch.promote_types(logits.dtype, torch.float32))
        for r, (row, log, request) in enumerate(zip(self.rows, logs, requests, strict=True)):
            paths = [log.path(number) for number in log.take(request)] if request is not None else []
            if paths:
                probs[r, : len(paths)] = self._row_draft_probs(row, paths, logits[r, : len(paths)])
        return probs

    def _row_draft_probs(self, row: BatchRow, paths: Sequence[Path], logits: Tensor) -> Tensor:
        prefixes = row.prefixes(paths)
        drafters = logits.unbind(1) if logits.dim() == 3 else [logits]
        probs = [
            self.draft_sampling.distribution(
                row.constrained(drafter_logits, paths), prefixes, may_be_empty=True
            )
            for drafter_logits in drafters
        ]
        return probs[0] if logits.dim() == 2 else torch.stack(probs, 1)

    def _scored(
        self, rows: Sequence[BatchRow], trees: Sequence[TokenTree], logits: Tensor
    ) -> tuple[Sequence[Tensor] | None, Sequence[Tensor]]:
        """The target's scores of all nodes, where a row's depend on its prefix, and its distributions."""
        if _reads_prefix(rows):
            scores = [
                self._target_scores(row, tree, of_row)
                for row, tree, of_row in zip(rows, trees, logits, strict=True)
            ]
            return scores, [self._target_probs(row, of_row) for row, of_row in zip(rows, scores, strict=True)]
        if logits.device.type == "cpu":
            stand_ins: list[Any] = [
                TargetRows(of_row[: tree.size], self.sampling, self._scratch)
                for tree, of_row in zip(trees, logits, strict=True)
            ]
            return None, stand_ins
        return None, self.sampling.targets(logits, self._scratch)  # type: ignore[return-value]

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
        if self.target.ranks is not None and self.stops.batches:
            ends = self.target.ranks.agreed(ends)  # a criterion may look at the clock
        for position, record in enumerate(records):
            if record.row in ends:
                before = self.stops.written[record.row] - len(record.tokens)
                left = max(ends[record.row] - before, 0)
                if ends[record.row] >= before:
                    del ends[record.row]
                records[position] = record.shortened(left, "criteria")
        return records, ends


_NO_DETAILS = TokenDetails()


def root_alone(row: BatchRow) -> TokenTree:
    """The tree of a row for which nothing was drafted."""
    return TreeBuilder(row.root).finish()


def _reads_prefix(rows: Sequence[BatchRow]) -> bool:
    return any(row.reads_prefix for row in rows)


def _advanced(growing: RowGrowth, probs: Tensor | None) -> tuple[Requests | None, Sequence[TokenTree]]:
    """The next requests; or None, and the trees."""
    try:
        return (next(growing) if probs is None else growing.send(probs)), ()
    except StopIteration as finished:
        trees: Sequence[TokenTree] = finished.value
        return None, trees


def as_batch(trees: Sequence[TokenTree]) -> tuple[Tensor, Tensor, list[int]]:
    """Tokens and parents of all rows, `[rows, nodes]`, and the nodes of every row."""
    if isinstance(trees, TreeBatch):
        return torch.from_numpy(trees.tokens), torch.from_numpy(trees.parents), trees.counts.tolist()
    counts = [tree.size for tree in trees]
    if len(trees) == 1:
        (tree,) = trees
        return tree.tokens[: tree.size].unsqueeze(0), tree.parents[: tree.size].unsqueeze(0), counts
    tokens = pad_sequence([tree.tokens[: tree.size] for tree in trees], batch_first=True)
    parents = pad_sequence([tree.parents[: tree.size] for tree in trees], batch_first=True, padding_value=-1)
    return tokens, parents, counts
