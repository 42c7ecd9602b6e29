"""`BatchRow`: one sequence being written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from draftwood import policy_states
from draftwood.constraints import ConstrainedRow
from draftwood.forced_tokens import without_forced_tokens
from draftwood.outcome import Outcome
from draftwood.prefixes import Path, Prefixes, RowText
from draftwood.protocols import TreePolicy
from draftwood.randomness import Streams
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
        grown: the round's tree as a policy that learns grew it, without forced spans; None otherwise.
        kept: whether its state stays when its text has ended, so that it can go on.
        idle: whether it has ended and stays.
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
    kept: bool = False
    idle: bool = False

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
        if self.grown is None:
            return
        drafted = without_forced_tokens(outcome, self.grown.size) if self.grown.size < tree.size else outcome
        self.policy_state = policy_states.observe(self.policy, self.policy_state, drafted, self.grown)

    def prefixes(self, paths: Sequence[Path]) -> Prefixes | None:
        return None if self.text is None else Prefixes(self.text, paths)

    def read(self, tokens: Sequence[int]) -> None:
        """`tokens` are more of the text, which nobody wrote."""
        self.root = tokens[-1]
        if self.text is not None:
            self.text.append(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        self.read(tokens)
        if self.constraint is not None:
            self.constraint.commit(tokens)
