"""Records of every round, and the totals that people compare.

Records are information for people; nothing in them is read by a later round.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood.decoding.metrics import value
from draftwood.trees.outcome import Outcome
from draftwood.trees.tree import TokenTree


@attrs.frozen
class TracedTree:
    """The tree of one row as plain lists, for a trace.

    `draft_probs[i]` and `target_probs[i]` are the probabilities of node i's token after its parent,
    under the law of a first draw from the draft, and under the target; 1 for the root.
    `extra_target_prob` is the target's probability of the round's extra token after the accepted path.
    """

    tokens: list[int]
    parents: list[int]
    draft_probs: list[float]
    target_probs: list[float]
    extra_target_prob: float

    @classmethod
    def of(cls, tree: TokenTree, target_probs: Tensor, outcome: Outcome) -> TracedTree:
        tokens, parents = tree.tokens[: tree.size].tolist(), tree.parents[: tree.size].tolist()
        draft, target = [1.0], [1.0]
        for node in range(1, tree.size):
            parent, token = parents[node], tokens[node]
            rank = tree.children(parent).index(node)
            draft.append(float(tree.proposals[parent].marginal(rank)[token]))
            target.append(float(target_probs[parent, token]))
        return cls(tokens, parents, draft, target, float(target_probs[outcome.path[-1], outcome.extra]))


@attrs.frozen
class RowRecord:
    """One row in one round.

    Attributes:
        row: number of the row in the call's input.
        tokens: tokens added to the text, cut at a stop condition.
        outcome: accepted path and extra token, before the cut.
        depth: depth of the tree.
        finished: why the row ended in this round (`"eos"`, `"length"`, `"context"`, `"criteria"`, `"error"`),
            or None.
        tree: the tree with its probabilities, when a trace was asked for.
        logits: the target's float32 `[tokens, vocab]` before each of `tokens`, where they are kept.
        scores: the same after processors and warpers.
        logprobs: of `tokens` under `logits`, where they are kept.
        likeliest: for each of `tokens`, the likeliest tokens in its place and their log-probabilities under
            `logits`, the likeliest first, where they are kept.
        error: the exception that ended the row, raised by code that its caller handed in; None otherwise.
        policy_state: the state of a policy that learns after the round, else None.
    """

    row: int
    tokens: tuple[int, ...]
    outcome: Outcome
    depth: int
    finished: str | None = None
    tree: TracedTree | None = None
    logits: Tensor | None = attrs.field(default=None, repr=False, eq=False)
    scores: Tensor | None = attrs.field(default=None, repr=False, eq=False)
    logprobs: tuple[float, ...] | None = None
    likeliest: tuple[tuple[tuple[int, float], ...], ...] | None = None
    error: BaseException | None = attrs.field(default=None, eq=False)
    policy_state: Any = None

    def shortened(self, count: int, finished: str) -> RowRecord:
        """The record of a row that ended with the first `count` of these tokens."""
        return attrs.evolve(
            self,
            tokens=self.tokens[:count],
            finished=finished,
            logits=None if self.logits is None else self.logits[:count],
            scores=None if self.scores is None else self.scores[:count],
            logprobs=None if self.logprobs is None else self.logprobs[:count],
            likeliest=None if self.likeliest is None else self.likeliest[:count],
        )

    def failed(self, error: BaseException) -> RowRecord:
        """The record of a row that `error` ended in this round."""
        return attrs.evolve(self.shortened(0, "error"), error=error)


@attrs.frozen
class TokenDetails:
    """The details that a token's record holds besides the token; each costs memory or time.

    Attributes:
        logits, scores, logprobs: as in `RowRecord`.
        likeliest: how many of the likeliest tokens `RowRecord.likeliest` names; 0: it is None.
    """

    logits: bool = False
    scores: bool = False
    logprobs: bool = False
    likeliest: int = 0


@attrs.frozen
class Round:
    """One round over all rows, or the prefill of rows that join; times in seconds.

    `draft_seconds` and `target_seconds` are the times of the passes; `seconds` is the whole round. `cut` has
    the number of new tokens that a row keeps in all, for rows that a criterion ended before this round's
    tokens: criteria that look at several rows at once are asked when the slowest row has come as far.
    `prefill` is True where the target read the prompts of `rows`, or more of their text, and gave each its
    first token.
    """

    rows: tuple[RowRecord, ...]
    draft_calls: int
    seconds: float
    draft_seconds: float
    target_seconds: float
    verify_seconds: float
    cut: Mapping[int, int] = attrs.field(factory=dict)
    prefill: bool = False


@attrs.define
class Statistics:
    """Totals of one `generate` call, computed from its rounds.

    Attributes:
        history: rounds and scored prefills, in order.
        draft_cost: bytes a draft pass reads over bytes a target pass reads.
        prefill_seconds: time of the prompts' passes.
        peak_memory: bytes; of the accelerator where there is one, else of the process (0 on Windows).
    """

    draft_cost: float = 0.0
    history: list[Round] = attrs.field(factory=list, repr=False)
    prefill_seconds: float = 0.0
    first_token_seconds: float = 0.0
    seconds: float = 0.0
    peak_memory: int = 0

    @property
    def rounds(self) -> list[Round]:
        """Returns the rounds in which trees were verified."""
        return [entry for entry in self.history if not entry.prefill]

    @property
    def new_tokens(self) -> int:
        """Tokens added to all rows."""
        return _tokens(self.history)

    @property
    def target_calls(self) -> int:
        """Returns the number of target passes after the prefill: one per round."""
        return len(self.rounds)

    @property
    def draft_calls(self) -> int:
        return sum(finished_round.draft_calls for finished_round in self.rounds)

    @property
    def sums(self) -> dict[str, float]:
        """Returns the sums from which the figures are computed; `metrics` defines each sum."""
        rounds = self.rounds
        records = [record for finished_round in rounds for record in finished_round.rows]
        texts = len({record.row for entry in self.history for record in entry.rows})
        by_prefill = _tokens(entry for entry in self.history if entry.prefill)
        # All rows of a round share one draft pass.
        passes = self.draft_calls * len(records) / max(len(rounds), 1)
        return {
            "texts": texts,
            "tokens": self.new_tokens,
            "rounds": len(records),
            "first_tokens": by_prefill or _tokens(rounds[:1]),
            "prefill_tokens": by_prefill,
            "drafted": sum(record.outcome.drafted for record in records),
            "accepted": sum(record.outcome.accepted for record in records),
            "depth": sum(record.depth for record in records),
            "seconds": self.seconds,
            "text_seconds": self.seconds * texts,
            "first_token_seconds": self.first_token_seconds * texts,
            "round_seconds": sum(finished_round.seconds for finished_round in rounds),
            "prefill_seconds": self.prefill_seconds,
            "draft_seconds": sum(finished_round.draft_seconds for finished_round in rounds),
            "target_seconds": sum(finished_round.target_seconds for finished_round in rounds),
            "verify_seconds": sum(finished_round.verify_seconds for finished_round in rounds),
            "draft_cost_calls": self.draft_cost * passes,
        }

    @property
    def tokens_per_round(self) -> float:
        """Returns the tokens that a row gains in a round, the extra token included."""
        return self.figure("tokens_per_round")

    @property
    def acceptance_rate(self) -> float:
        """Accepted draft tokens over drafted tokens."""
        return self.figure("acceptance_rate")

    def figure(self, name: str) -> float:
        """A figure of `draftwood.decoding.metrics.METRICS` by its name; 0 where nothing was counted."""
        return value(name, self.sums)

    def summary(self) -> dict[str, float]:
        """The counts, the times and every figure that one call has, by name."""
        counted: dict[str, float] = {name: getattr(self, name) for name in _COUNTED}
        sums = self.sums
        return counted | {name: value(name, sums) for name in _FIGURES}


def _tokens(rounds: Iterable[Round]) -> int:
    return sum(len(record.tokens) for finished_round in rounds for record in finished_round.rows)


_COUNTED = (
    "new_tokens",
    "target_calls",
    "draft_calls",
    "prefill_seconds",
    "first_token_seconds",
    "seconds",
    "peak_memory",
)
_FIGURES = (
    "tokens_per_round",
    "acceptance_rate",
    "path_length",
    "depth_share",
    "tree_size",
    "tree_depth",
    "time_per_output_token",
    "seconds_per_token",
    "tokens_per_second",
    "memory_bound_speed_up",
    "overhead",
)


def peak_memory() -> int:
    """Peak bytes: allocated on the accelerator if one is in use, else resident in this process.

    0 where Python is not told what a process holds, which is so on Windows.
    """
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return torch.cuda.max_memory_allocated()
    try:
        import resource  # systems after POSIX have it
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
