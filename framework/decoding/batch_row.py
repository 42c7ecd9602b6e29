"""`BatchRow`: one sequence being written, with everything that belongs to it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs
import torch
from torch import Tensor

from draftwood.base.errors import is_ctrl_c
from draftwood.decoding.row_settings import RowSettings
from draftwood.decoding.stopping import RowStops
from draftwood.distributions.constraints import ConstrainedRow
from draftwood.distributions.forced_tokens import without_forced_tokens
from draftwood.laws.randomness import Streams
from draftwood.protocols import TreePolicy, policy_states
from draftwood.protocols.model_prompt import PromptRow
from draftwood.protocols.pass_costs import PassCosts
from draftwood.protocols.row_view import HISTORY, RowView
from draftwood.trees.outcome import Outcome
from draftwood.trees.prefixes import Path, Prefixes, RowText
from draftwood.trees.tree import TokenTree

T = TypeVar("T")


@attrs.define(eq=False)
class BatchRow:
    """One sequence being written.

    Attributes:
        index: its number in the call's input.
        root: the last committed token.
        policy: grows the trees of all rows.
        streams: the random numbers of this row.
        stops: the conditions under which it ends.
        settings: settings for the choice of its tokens, and for its records.
        prefix: the text that processors see; None where none reads it.
        constraint: the tokens that may be written, or None.
        policy_state: the policy's state, learnt from this row.
        history: drafted and accepted nodes of its last rounds, where the policy reads rows; see `RowView`.
        grown: the round's tree as a policy that learns or reads rows grew it, without forced spans; None
            otherwise.
        kept: whether its state stays when its text has ended, so that it can go on.
        idle: whether it has ended and stays.
        place: its position among the rows that target and drafter hold; None where they do not hold it.
        unread: tokens of its text that the target is still to read: the prompt of a row that waits, or the
            new tokens of a row that goes on.
        undrafted: tokens of its text that the drafter is still to read; None where the drafter holds the row.
        given: its row of a prompt of more than tokens, until target and drafter have read it; else None.
        error: the exception that ends it, raised by code that the row's caller handed in; None otherwise.
    """

    index: int
    root: int
    policy: TreePolicy
    streams: Streams
    stops: RowStops
    settings: RowSettings = attrs.field(factory=RowSettings)
    prefix: RowText | None = None
    constraint: ConstrainedRow | None = None
    policy_state: Any = attrs.field(
        default=attrs.Factory(lambda row: policy_states.first_state(row.policy), takes_self=True)
    )
    kept: bool = False
    unread: list[int] = attrs.field(factory=list)
    given: PromptRow | None = None
    grown: TokenTree | None = attrs.field(default=None, init=False)
    history: tuple[tuple[int, int], ...] = attrs.field(default=(), init=False)
    idle: bool = attrs.field(default=False, init=False)
    place: int | None = attrs.field(default=None, init=False)
    undrafted: list[int] | None = attrs.field(default=None, init=False)
    error: BaseException | None = attrs.field(default=None, init=False)

    @property
    def reads_prefix(self) -> bool:
        """Returns whether a distribution depends on more than the logits."""
        return self.prefix is not None or self.constraint is not None

    def reachable(self, path: Path) -> bool:
        """Returns whether the text may go on after `path`: not after its end, and not beyond its limit.

        One token after another, nobody would ask what follows an unreachable node.
        """
        return len(path) < self.stops.room and self.stops.eos_token_ids.isdisjoint(path)

    def guarded(self, call: Callable[[], T], *, otherwise: T) -> T:
        """Returns `call()`, which runs code of the row's caller; an exception ends this row and no other.

        A row that has failed already gets `otherwise` without a call.
        """
        if self.error is not None:
            return otherwise
        try:
            return call()
        except BaseException as error:  # SystemExit too: a caller's code may not end what others share
            if is_ctrl_c(error):
                raise
            self.error = error
            return otherwise

    def constrained(self, logits: Tensor, paths: Sequence[Path]) -> Tensor:
        """Logits `[n, vocab]` after each of `paths`, without the tokens that the constraint forbids."""
        if self.constraint is None:
            return logits
        return logits.masked_fill(~self.constraint.masks(paths).to(logits.device), -torch.inf)

    def observe(self, outcome: Outcome, tree: TokenTree) -> None:
        """Let the policy learn from the outcome of the nodes that it drafted in the round's `tree`."""
        if self.grown is None:
            return
        drafted = without_forced_tokens(outcome, self.grown.size) if self.grown.size < tree.size else outcome
        if self.policy.reads_row:
            self.history = (*self.history, (drafted.drafted, drafted.accepted))[-HISTORY:]
        self.policy_state = policy_states.observe(self.policy, self.policy_state, drafted, self.grown)

    def view(self, costs: PassCosts | None, *, rows: int) -> RowView:
        """Returns what the policy may know of the row before a round of so many rows."""
        return RowView(
            length=self.stops.length,
            left=self.stops.room,
            history=self.history,
            rows=rows if self.policy.scope == "batch" else 1,
            costs=costs,
        )

    def prefixes(self, paths: Sequence[Path]) -> Prefixes | None:
        return None if self.prefix is None else Prefixes(self.prefix, paths)

    def go_on_after(self, tokens: int, *, undrafted: list[int] | None) -> None:
        """Begin with the first `tokens` unread tokens: the target has read all but the last, the root."""
        self.root, self.unread = self.unread[tokens - 1], self.unread[tokens:]
        self.undrafted = undrafted
        if self.prefix is not None:
            self.prefix.shorten(len(self.unread))  # what it reads later is appended then

    def read(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the text, which nobody wrote."""
        self.root = tokens[-1]
        if self.prefix is not None:
            self.prefix.append(tokens)

    def commit(self, tokens: Sequence[int]) -> None:
        """Append `tokens` to the text, which a round wrote."""
        if self.constraint is not None:
            self.constraint.commit(tokens)
        self.read(tokens)
