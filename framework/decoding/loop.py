"""The round: draft, score, verify, commit. Batch-first; one row is the common case."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from time import perf_counter

import attrs
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from draftwood.base.scratch import Scratch
from draftwood.decoding import round_distributions, row_settings
from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.round_records import Round, TracedTree
from draftwood.decoding.row_turns import RowTurn, ended_by_criteria, failures_agreed
from draftwood.decoding.running_rows import NOTHING, RunningRows
from draftwood.distributions.forced_tokens import with_forced_tokens
from draftwood.protocols import Drafter, StateBackend, Verifier, policy_states
from draftwood.protocols.pass_costs import PassCosts
from draftwood.protocols.scored_nodes import ScoredNodes
from draftwood.trees.level_plan import LevelPlan, Levels
from draftwood.trees.outcome import Outcome
from draftwood.trees.request import RequestLog
from draftwood.trees.tree import TokenTree, TreeBuilder
from draftwood.trees.tree_batch import TreeBatch


@attrs.frozen(eq=False)
class Verified:
    """The verified trees of some rows.

    Attributes:
        turns: one for each row.
        cut: as in `Round`.
        seconds: time of verification.
    """

    turns: list[RowTurn]
    cut: dict[int, int]
    seconds: float


@attrs.define(eq=False)
class RoundLoop:
    """Rows that are being written, and the parts that drive them.

    Attributes:
        costs: of passes, for policies that read rows.
        held: all rows that target and drafter hold, by place: those that run, and idle ones.
    """

    target: StateBackend
    drafter: Drafter
    verifier: Verifier
    held: list[BatchRow] = attrs.field(factory=list)
    trace: bool = False
    costs: PassCosts | None = None
    _scratch: Scratch = attrs.field(factory=Scratch, init=False)
    # The rows of the last round; None where rows have come, ended or gone on since.
    _running: RunningRows | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self._number()

    @property
    def rows(self) -> list[BatchRow]:
        """The rows that are being written, by place."""
        return [row for row in self.held if not row.idle]

    def run(self) -> Round:
        """One round over all running rows; finished rows leave the loop and release their state."""
        started = perf_counter()
        self._scratch.reset()
        if self._running is None:
            self._running = RunningRows.of(self.rows, len(self.held))
        batch = self._running
        trees, draft_calls, draft_seconds = self._draft(batch)
        if self.target.ranks is not None:
            trees = self.target.ranks.agreed_trees(trees)

        scoring = perf_counter()
        nodes: tuple[Tensor, Tensor, Sequence[int]] = as_batch(trees)
        if not batch.all:
            nodes = batch.nodes(*nodes)
        of_places = self.target.extend(*nodes)
        logits = of_places if batch.all else batch.of_rows(of_places)
        target_seconds = perf_counter() - scoring

        verified = self._verified(batch, trees, logits)
        outcomes = batch.by_place([turn.outcome for turn in verified.turns], otherwise=NOTHING)
        if self.drafter.reads_scores:
            self.drafter.scored(ScoredNodes(*nodes, of_places))
        self.target.commit([outcome.path for outcome in outcomes])
        self.drafter.commit(outcomes)
        seconds = self._settled(verified, started)
        return self._round(
            verified,
            seconds=seconds,
            draft_calls=draft_calls,
            draft_seconds=draft_seconds,
            target_seconds=target_seconds,
        )

    def hold(self, rows: Sequence[BatchRow]) -> None:
        """Hold rows whose texts the target has read already, as its only ones."""
        self.held = list(rows)
        self._number()

    def prefill(self, rows: Sequence[BatchRow]) -> Tensor | None:
        """Let the target read the prompts of new rows, and hold them.

        Where the target gives first logits it reads all of what the rows have `unread`, and `join` is due.
        It does the same with the rows of a prompt of more than tokens, which come together and without
        others. Elsewhere it reads all but the last token, which is the root. An error leaves everything as
        it was.

        Returns:
            Logits `[rows, vocab]` after the prompts, or None.
        """
        prompts = [torch.tensor(row.unread, dtype=torch.int64) for row in rows]
        logits = None
        if rows[0].given is not None:
            logits = self.target.read_prompt(rows[0].given.prompt)
        elif self.target.gives_first_logits:
            logits = self.target.first_logits(prompts)
        else:
            self.target.prefill([prompt[:-1] for prompt in prompts])
        self.held += rows
        self._number()
        for row in rows:
            row.undrafted, row.unread = row.unread if logits is not None else row.unread[:-1], []
        return logits

    def join(self, rows: Sequence[BatchRow], logits: Tensor, *, seconds: float) -> Round:
        """First tokens of rows whose prompts were read in so many seconds, by logits `[rows, vocab]`.

        Before the next round `prefill_drafter` is due.
        """
        started = perf_counter()
        batch = RunningRows.of(rows, len(self.held))
        verified = self._verified(batch, [root_alone(row) for row in batch.rows], logits.unsqueeze(1))
        settled = self._settled(verified, started)
        return self._round(verified, seconds=seconds + settled, target_seconds=seconds, prefill=True)

    def prefill_drafter(self, joined: Sequence[BatchRow]) -> None:
        """Let the drafter read the prompts of all rows that have joined since the last round."""
        for prompt, group in groupby(joined, key=lambda row: row.given and row.given.prompt):
            rows = list(group)
            if prompt is None:
                self.drafter.prefill([torch.tensor(row.undrafted, dtype=torch.int64) for row in rows])
            else:
                self.drafter.prefill_prompt(prompt, [row.given.number for row in rows if row.given])
            for row in rows:
                row.undrafted = row.given = None

    def resume(self, rows: Sequence[BatchRow]) -> Round:
        """First tokens of held rows that go on, after the part of their text that is `unread`."""
        started, self._running = perf_counter(), None
        batch = RunningRows.of(rows, len(self.held))
        chains: list[Sequence[int]] = [[row.root, *row.unread] for row in batch.rows]
        logits = batch.of_rows(self.target.read(batch.by_place(chains, otherwise=())))
        target_seconds = perf_counter() - started
        for row in batch.rows:
            row.read(row.unread)
            row.unread = []
        verified = self._verified(batch, [root_alone(row) for row in batch.rows], logits.unsqueeze(1))
        read = [
            Outcome(range(len(chain)), chain, extra=turn.outcome.extra, bonus=False, drafted=0)
            for chain, turn in zip(chains, verified.turns, strict=True)
        ]
        self.drafter.commit(batch.by_place(read, otherwise=NOTHING))
        seconds = self._settled(verified, started)
        return self._round(verified, seconds=seconds, target_seconds=target_seconds, prefill=True)

    def release(self, rows: Sequence[BatchRow]) -> None:
        """Forget these rows and their states, the drafter's where it has read their prompts."""
        if not rows:
            return
        batch = RunningRows.of(rows, len(self.held))
        self.target.release(batch.places)
        # Rows that the drafter has not read joined last, so they have the last places.
        drafted = [row for row in batch.rows if row.undrafted is None]
        self.drafter.release(RunningRows.of(drafted, len(self.held)).places if drafted else [])
        gone = set(batch.places)
        self.held = [row for row in self.held if row.place not in gone]
        for row in batch.rows:
            row.place = None
        self._number()

    def _number(self) -> None:
        self._running = None
        for place, row in enumerate(self.held):
            row.place = place

    def _verified(self, batch: RunningRows, trees: Sequence[TokenTree], logits: Tensor) -> Verified:
        """Verify the trees of `batch` by logits `[rows, nodes, vocab]`, and append the accepted text."""
        started = perf_counter()
        scores, probs = round_distributions.scored(batch, trees, logits, self._scratch)
        outcomes = self._outcomes(batch, trees, probs)
        seconds = perf_counter() - started
        turns = []
        for position, row in enumerate(batch.rows):
            turn = RowTurn(row, trees[position], probs[position], outcomes[position])
            turn.take(logits[position], scores[position])
            turns.append(turn)
        ends = ended_by_criteria(turns, self.target.ranks)
        for turn in turns:
            turn.commit()
        failures_agreed(turns, self.target.ranks)
        return Verified(turns, ends, seconds)

    def _outcomes(
        self, batch: RunningRows, trees: Sequence[TokenTree], probs: Sequence[Tensor]
    ) -> list[Outcome]:
        """Returns the verifier's outcomes; if several processes run the target, the outcomes of the first."""
        ranks, outcomes = self.target.ranks, list[Outcome]()
        if ranks is None or ranks.first:
            outcomes = self.verifier.verify_rows(trees, probs, batch.verify_streams)
        return outcomes if ranks is None else ranks.agreed(outcomes)

    def _settled(self, verified: Verified, started: float) -> float:
        """Let finished rows leave, or wait where they are kept; the seconds since `started`."""
        ended = [turn.row for turn in verified.turns if turn.record.finished]
        if ended:
            self._running = None
            for row in ended:
                row.idle = row.kept and row.error is None
            self.release([row for row in ended if not row.idle])
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
        records = [turn.record for turn in verified.turns]
        if self.trace:  # what a trace costs is no part of the round
            records = [
                attrs.evolve(turn.record, tree=TracedTree.of(turn.tree, turn.probs, turn.record.outcome))
                for turn in verified.turns
            ]
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
        policy = batch.rows[0].policy
        growth = policy_states.growth(
            policy,
            [row.root for row in batch.rows],
            batch.draft_streams,
            [row.policy_state for row in batch.rows],
            batch.node_streams,
            views=[row.view(self.costs, rows=len(batch)) for row in batch.rows] if policy.reads_row else None,
        )
        started, calls, probs = perf_counter(), 0, None
        plan = growth.plan
        if plan is not None and (levels := self._planned_levels(batch, plan)) is not None:
            seconds, calls = perf_counter() - started, len(levels.widths)
            growth.follow(levels)
            return self._finished(batch, growth.trees(), None), calls, seconds
        logs = {position: RequestLog() for position in batch.readers} if batch.readers else {}
        seconds = 0.0
        while (requests := growth.requests) is not None:
            started = perf_counter()
            logits = self.drafter.distributions(requests if batch.all else batch.requests(requests))
            if not batch.all:
                logits = batch.of_rows(logits)
            seconds += perf_counter() - started
            calls += 1
            probs = batch.proposals.of(logits, self._scratch, counts=requests.counts)
            if logs:
                round_distributions.fill_readers(probs, batch, requests, logits, logs)
            growth.answer(probs)
        return self._finished(batch, growth.trees(), probs), calls, seconds

    def _planned_levels(self, batch: RunningRows, plan: LevelPlan) -> Levels | None:
        """All levels of the round, where the drafter grows them in one go; None where it does not."""
        if not batch.all or batch.readers:
            return None
        sampling = row_settings.shared(batch.draft_sampling)
        if sampling is None or not sampling.is_softmax:
            return None
        roots = [row.root for row in batch.rows]
        return self.drafter.planned_levels(roots, plan, temperature=sampling.temperature)

    def _finished(
        self, batch: RunningRows, trees: Sequence[TokenTree], probs: Tensor | None
    ) -> Sequence[TokenTree]:
        """Returns the trees that the target scores; `probs` are the distributions of the last request."""
        # Nodes that the limit would cut anyway are not worth a pass, and may lie beyond the context.
        rooms = [row.stops.room - 1 for row in batch.rows]
        vocab_size = self.target.vocab_size
        if isinstance(trees, TreeBatch):
            trees = trees.validated(vocab_size).truncated(rooms)
        else:
            trees = [
                tree.validated(vocab_size).truncated(rooms[position]) for position, tree in enumerate(trees)
            ]
        policy = batch.rows[0].policy
        if policy.learns or policy.reads_row:
            for position, row in enumerate(batch.rows):
                row.grown = trees[position]
        if probs is None or not batch.readers:
            return trees
        return [
            row.guarded(
                partial(_with_forced_tokens, row, trees[position], rooms[position], like=probs),
                otherwise=trees[position],
            )
            for position, row in enumerate(batch.rows)
        ]


def root_alone(row: BatchRow) -> TokenTree:
    """The tree of a row for which nothing was drafted."""
    return TreeBuilder(row.root).finish()


def _with_forced_tokens(row: BatchRow, tree: TokenTree, room: int, *, like: Tensor) -> TokenTree:
    if row.constraint is None:
        return tree
    return with_forced_tokens(tree, row.constraint, laws=row.policy.laws, like=like, deepest=room)


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
