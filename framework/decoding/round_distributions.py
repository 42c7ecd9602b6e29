"""Distributions of the rows of a round: the target's, and the draft's of rows that read their prefix."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import torch
from jaxtyping import Float
from torch import Tensor

from draftwood.base.lazy_tensor import LazyRows
from draftwood.base.scratch import Scratch
from draftwood.decoding import row_settings
from draftwood.decoding.batch_row import BatchRow
from draftwood.decoding.running_rows import RunningRows
from draftwood.distributions.sampling import SamplingParams
from draftwood.trees.prefixes import Path, paths_of
from draftwood.trees.request import RequestLog, Requests
from draftwood.trees.tree import TokenTree


def fill_readers(
    probs: Tensor,
    batch: RunningRows,
    requests: Requests,
    logits: Tensor,
    logs: Mapping[int, RequestLog],
) -> None:
    """Write the draft's distributions of the rows that read their prefix into `probs`.

    `logs` has these rows, by position; `logits` and `probs` are `[rows, nodes, ..., vocab]`.
    """
    for position, log in logs.items():
        row, request = batch.rows[position], requests[position]
        probs[position] = 0
        if request is None:
            continue
        of_node = {node: log.path(number) for node, number in enumerate(log.take(request))}
        asked = [node for node, path in of_node.items() if row.reachable(path)]
        if asked:
            of_row = logits[position, asked]
            own = partial(_row_draft_probs, row, [of_node[node] for node in asked], of_row)
            probs[position, asked] = row.guarded(own, otherwise=torch.zeros_like(of_row)).to(probs.dtype)


def _row_draft_probs(row: BatchRow, paths: Sequence[Path], logits: Tensor) -> Tensor:
    prefixes = row.prefixes(paths)
    drafters = logits.unbind(1) if logits.dim() == 3 else [logits]
    probs = [
        row.settings.draft_sampling.distribution(
            row.constrained(drafter_logits, paths), prefixes, may_be_empty=True
        )
        for drafter_logits in drafters
    ]
    return probs[0] if logits.dim() == 2 else torch.stack(probs, 1)


def scored(
    batch: RunningRows, trees: Sequence[TokenTree], logits: Tensor, scratch: Scratch
) -> tuple[Sequence[Tensor | None], Sequence[Tensor]]:
    """The target's scores of all nodes, where a row's depend on its prefix, and its distributions."""
    on_cpu = logits.device.type == "cpu"
    if not batch.readers and not on_cpu:
        return [None] * len(batch), row_settings.targets(batch.sampling, logits, scratch)  # type: ignore[return-value]
    scores: list[Tensor | None] = []
    probs: list[Any] = []
    for position, row in enumerate(batch.rows):
        tree, of_row, sampling = trees[position], logits[position], row.settings.sampling
        own = None
        if position in batch.readers:
            scored = partial(target_scores, row, tree, of_row)
            own = row.guarded(scored, otherwise=torch.zeros_like(of_row[: tree.size]))
        scores.append(own)
        if own is not None:
            probs.append(target_probs(row, own))
        elif on_cpu:
            probs.append(TargetRows(of_row[: tree.size], sampling, scratch))
        else:
            probs.append(sampling.targets(of_row, scratch))
    return scores, probs


def target_scores(row: BatchRow, tree: TokenTree, logits: Tensor) -> Tensor:
    sampling, logits = row.settings.sampling, logits[: tree.size]
    if not row.reads_prefix:
        return sampling.scores(logits)
    paths = paths_of(tree.tokens[: tree.size].tolist(), tree.parents[: tree.size].tolist())
    asked = [node for node, path in enumerate(paths) if row.reachable(path)]
    paths = [paths[node] for node in asked]
    own = sampling.scores(row.constrained(logits[asked], paths), row.prefixes(paths))
    if len(asked) == len(logits):
        return own
    # Nothing that is drawn after the others is kept.
    scores = torch.zeros(logits.shape, dtype=own.dtype, device=own.device)
    scores[asked] = own
    return scores


def target_probs(row: BatchRow, scores: Tensor) -> Tensor:
    sampling = row.settings.sampling
    if not row.reads_prefix:
        return sampling.probabilities(scores)
    anything = torch.zeros_like(scores)
    anything[:, 0] = 1
    probs = row.guarded(partial(sampling.probabilities, scores, may_be_empty=True), otherwise=anything)
    # After an end of text no token may be left, and what is drawn there is not kept.
    probs[:, 0] += probs.sum(-1) == 0
    return probs


@attrs.frozen(eq=False)
class TargetRows(LazyRows):
    """Stands for the distributions `[nodes, vocab]` of one row.

    On a CPU a verifier reads a node's distribution where it comes to the node, and it comes to few.

    Attributes:
        logits: of the target, `[nodes, vocab]`.
        sampling: the target's.
        scratch: memory for the rows, which lasts as long as they are looked at.
    """

    logits: Float[Tensor, "nodes vocab"]
    sampling: SamplingParams
    scratch: Scratch = attrs.field(factory=Scratch)
    _rows: dict[int, Tensor] = attrs.field(factory=dict, init=False)

    def __len__(self) -> int:
        return self.logits.shape[0]

    @property
    def certain(self) -> bool:  # type: ignore[override]
        return self.sampling.is_argmax

    @property
    def device(self) -> torch.device:
        return self.logits.device

    def row(self, node: int) -> Tensor:
        if node in self._rows:
            return self._rows[node]
        sampling, logits, row = self.sampling, self.logits[node], None
        if sampling.is_argmax:
            row = _certain(logits)
        elif sampling.temperature:
            row = sampling.targets(logits, self.scratch)
        # What NaN comes of is refused, with the number of the node.
        if row is None or math.isnan(row.numpy().item(0)):
            row = self.complete()[node]
        self._rows[node] = row
        return row

    def likeliest(self, node: int) -> int:
        if self.sampling.is_argmax:
            # numpy finds the largest sooner; it has no bfloat16.
            whole = self.logits.dtype.itemsize > 2
            scores = self.logits.numpy()[node] if whole else self.logits[node].float().numpy()
            best = int(scores.argmax())
            if math.isfinite(scores[best]):
                return best
        return super().likeliest(node)

    def complete(self) -> Tensor:
        if -1 not in self._rows:
            self._rows[-1] = self.sampling.distribution(self.logits)
        return self._rows[-1]


def _certain(logits: Float[Tensor, " vocab"]) -> Tensor | None:
    """All of the probability at the first of the largest; None where that is not finite."""
    best = int(logits.argmax())
    if not math.isfinite(logits[best]):
        return None
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    certain = torch.zeros(logits.shape, dtype=dtype)
    certain[best] = 1
    return certain
