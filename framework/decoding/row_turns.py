"""`RowTurn`: one row in one round, from the verifier's outcome to the text that it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import InvalidDistribution
from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.round_records import RowRecord, TokenDetails
from draftwood.decoding.stopping import CriteriaBatch, Cut
from draftwood.protocols.ranks import Ranks
from draftwood.trees.outcome import Outcome
from draftwood.trees.tree import TokenTree


@attrs.define(eq=False)
class RowTurn:
    """One row in one round.

    Attributes:
        row: whose turn it is.
        tree: the round's tree.
        probs: the target's distributions `[nodes, vocab]` after its nodes.
        outcome: what is committed of the tree; of a row that stays, only what of it the text keeps.
        record: the result, for people.
    """

    row: BatchRow
    tree: TokenTree
    probs: Tensor
    outcome: Outcome
    record: RowRecord = attrs.field(init=False)

    def take(self, logits: Tensor, scores: Tensor | None) -> None:
        """Take the outcome's tokens as text, up to the row's own end.

        Args:
            logits: the target's logits, `[nodes, vocab]`.
            scores: the logits after processors, constraint and warpers; None: they depend only on the logits.
        """
        row, outcome, depth = self.row, self.outcome, self.tree.depth
        if row.error is not None:
            self.record = RowRecord(row.index, (), outcome, depth)
            row.stops.end()
            return
        if row.grown is not None:
            row.observe(outcome, self.tree)
        path, keep = list(outcome.path), row.settings.keep
        details: dict[str, Any] = {}
        if keep != _NO_DETAILS:
            of_path = row.settings.sampling.scores(logits[path]) if scores is None else scores[path]
            details = _details(logits[path], of_path, outcome, keep)
        new, reason = row.stops.take(outcome.emitted, details.get("scores"))
        if scores is not None:
            row.guarded(partial(_check_open, row, scores[path[: len(new)]]), otherwise=None)
        for name, values in details.items():
            details[name] = values[: len(new)]
        self.record = RowRecord(
            row.index, new, outcome, depth, reason, policy_state=row.policy_state, **details
        )

    def cut(self, length: int) -> bool:
        """End the row at `length` new tokens in all; whether that lies before this round's tokens."""
        before = self.row.stops.written - len(self.record.tokens)
        self.record = self.record.shortened(max(length - before, 0), "criteria")
        return length < before

    def commit(self) -> None:
        """Append the record's tokens to the text of a row that stays."""
        row, record = self.row, self.record
        if row.error is not None or (record.finished is not None and not row.kept):
            return
        # A constraint starts anew with the next part of a kept row's text.
        append = row.commit if record.finished is None else row.read
        row.guarded(partial(append, record.tokens), otherwise=None)
        self.outcome = self.outcome.shortened(len(record.tokens))


_NO_DETAILS = TokenDetails()


def _details(logits: Tensor, scores: Tensor, outcome: Outcome, keep: TokenDetails) -> dict[str, Any]:
    """Returns the details that `keep` requests of the emitted tokens, from the path's `[tokens, vocab]`."""
    details: dict[str, Any] = {}
    if keep.logits:
        details["logits"] = logits.float().clone()
    if keep.scores:
        details["scores"] = scores.clone()
    if keep.logprobs or keep.likeliest:
        logprobs = logits.float().log_softmax(-1)
    if keep.logprobs:
        emitted = torch.tensor(outcome.emitted, device=logits.device).unsqueeze(1)
        details["logprobs"] = tuple(logprobs.gather(1, emitted).squeeze(1).tolist())
    if keep.likeliest:
        values, tokens = (found.tolist() for found in logprobs.topk(min(keep.likeliest, logits.shape[-1])))
        details["likeliest"] = tuple(
            tuple((token, values[n][k]) for k, token in enumerate(of_place))
            for n, of_place in enumerate(tokens)
        )
    return details


def _check_open(row: BatchRow, scores: Tensor) -> None:
    """Refuse kept tokens that were drawn where processors and constraint leave none, as sampling does."""
    if row.settings.sampling.temperature and bool((scores.amax(-1) == -torch.inf).any()):
        raise InvalidDistribution(
            f"Processors and constraint allow no token after the text of row {row.index}; loosen one, or "
            "let them allow an end-of-text token."
        )


def ended_by_criteria(turns: Sequence[RowTurn], ranks: Ranks | None) -> dict[int, int]:
    """Cut the records where criteria end them; the rows whose end lies before this round, by number.

    The values are new tokens that such a row keeps in all.
    """
    watched: dict[int, list[RowTurn]] = {}
    for turn in turns:
        if turn.row.stops.criteria is not None:
            watched.setdefault(id(turn.row.stops.criteria), []).append(turn)
    ends: dict[int, int] = {}
    for together in watched.values():
        for cut in _asked(together):
            ends[cut.row] = cut.length
    if ranks is not None and watched:
        ends = ranks.agreed(ends)  # a criterion may look at the clock
    for turn in turns:
        if turn.row.index in ends and not turn.cut(ends[turn.row.index]):
            del ends[turn.row.index]
    return ends


def _asked(turns: Sequence[RowTurn]) -> list[Cut]:
    """The answer of criteria about these rows, which an error of theirs ends all."""
    criteria: CriteriaBatch | None = turns[0].row.stops.criteria
    assert criteria is not None
    rows = [turn.row for turn in turns if turn.row.error is None]
    if not rows:
        return []
    cuts = rows[0].guarded(criteria.ask, otherwise=list[Cut]())
    for row in rows[1:]:
        row.error = rows[0].error
    return cuts


def failures_agreed(turns: Sequence[RowTurn], ranks: Ranks | None) -> None:
    """Record the rows that ended by an error, as the first process found them where several run the target.

    Raises:
        BaseException: the error of a row that goes on in the first process and cannot here.
    """
    if ranks is not None and any(turn.row.reads_prefix or turn.row.stops.criteria for turn in turns):
        errors = {turn.row.index: turn.row.error for turn in turns if turn.row.error is not None}
        agreed = ranks.agreed({index: f"{type(error).__name__}: {error}" for index, error in errors.items()})
        for index, error in errors.items():
            if index not in agreed:
                raise error
        for turn in turns:
            if turn.row.error is None and turn.row.index in agreed:
                turn.row.error = RuntimeError(agreed[turn.row.index])
    for turn in turns:
        if turn.row.error is not None:
            turn.record = turn.record.failed(turn.row.error)
