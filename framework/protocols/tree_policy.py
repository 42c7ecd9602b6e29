"""`TreePolicy`, `LearningPolicy`, `BatchPolicy` and `ArrayPolicy`: which tree to grow."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol, TypeVar, cast

from draftwood.laws.proposals import Proposal
from draftwood.laws.randomness import Randomness
from draftwood.protocols.row_view import RowView
from draftwood.trees.array_growth import ArrayGrowth
from draftwood.trees.growth import Growing, one_row
from draftwood.trees.outcome import Outcome
from draftwood.trees.row_trees import GrowingRows
from draftwood.trees.tree import TokenTree

State = TypeVar("State")
Share = TypeVar("Share")


class TreePolicy(Protocol):
    """Decides which tree to grow. Single-row code with no model in sight; a table can drive it.

    Law P: children follow their declared proposal, given everything drawn before them. Whether a node is kept
    may depend on anything except that node's own token and the draws below it.

    All rows share one policy and their growths run side by side, so `grow` changes nothing on `self`; make
    it an `attrs.frozen` class.

    Attributes:
        laws: the proposal laws its trees may carry.
        adaptive: whether the number of a node's children may depend on the tokens of any of them, or on draws
            below them. A policy that is not adaptive chooses this number before it draws the first child,
            from earlier draws and independent random numbers. The order of its nodes is free. Verifiers that
            look at several siblings at once only accept such policies.
        branches: whether a node may have more than one child.
        independent_paths: whether trees that branch are independent paths: one node branches, and below it
            are chains of one length that only end before it where the draft proposes nothing. Only verifiers
            that need it ask, and not of chains; False is always safe.
        learns: whether it is a `LearningPolicy`, whose trees depend on earlier outcomes.
        scope: `"row"` where a tree depends on nothing of other rows; `"batch"` for a `BatchPolicy`.
        reads_row: whether it gets a `RowView` of each row: its length, the tokens left, its acceptance so
            far, and the costs of passes. `grow` then takes one more argument, `view`, and `share` of a
            `BatchPolicy` takes `views`, one per row.
        asks: names of the drafters that its requests ask, which the drafter must have (`Drafter.names`).
        source: paper and algorithm.
    """

    laws: frozenset[type[Proposal]]
    adaptive: bool = False
    branches: bool = True
    independent_paths: bool = False
    learns: bool = False
    scope: Literal["row", "batch"] = "row"
    reads_row: bool = False
    asks: frozenset[str] = frozenset()
    source: str = ""

    def grow(self, root: int, rng: Randomness) -> Growing:
        """Grow a tree under the token `root`.

        Yields its requests, and returns the tree.

        - `tree.open(nodes, law, counts)` asks for children. The answer is a list with the `Siblings` of each
          node, which the loop has drawn for all rows at once.
        - Both take `drafter`, a name in `asks`, and may then ask another drafter for the same node.
        - `tree.request(nodes)` asks for the draft distributions, after the draft's own sampling transform:
          `[k, vocab]`, or `[k, drafters, vocab]` where several drafters propose. `draw_children` and `rng`
          draw from them. A row of zeros means that the drafter has nothing to propose there.
        """
        ...


class LearningPolicy(TreePolicy, Protocol[State]):
    """A policy whose trees depend on earlier outcomes, by a state that is passed from round to round.

    The policy itself never changes: `first_state` gives the initial state, `grow` reads a state, and
    `observe` gives the next one. So each row has its own state, and `Generation.policy_states` can be handed
    to the next call. A state is a value: immutable, hashable, of one class, and equal (`==`) where the same
    was learnt, such as an `attrs.frozen` class of numbers and tuples. It may hold anything known after the
    round: settings, counts, tokens.

    If `observe` needs more of the growth than the tree, `grow` puts it into `TokenTree.note`, a value too.
    Law P holds for the trees of every state: the state counts as known before anything is drawn.
    """

    learns: bool = True

    def first_state(self) -> State:
        """Returns the state before the first round."""
        ...

    def grow(self, root: int, rng: Randomness, state: State | None = None) -> Growing:
        """Grow a tree as `TreePolicy.grow` does, by `state`; None is the first state."""
        ...

    def observe(self, state: State, outcome: Outcome, tree: TokenTree) -> State:
        """The state after a round.

        Args:
            state: that the tree was grown by.
            outcome: of the round, in this tree.
            tree: as `grow` returned it, with its note; without levels beyond the text's limit. Its
                distributions are overwritten in the next round.
        """
        ...


class BatchPolicy(TreePolicy, Protocol[Share]):
    """A policy whose trees of one round depend on each other, such as trees under one budget.

    Rows see each other through a share that each of them gets: `share` makes them for a round, and `grow`
    takes its row's. A growth that needs what all rows have drawn yields `WAIT`; it goes on when every row
    waits or is grown.

    Law P holds for all rows jointly. Whether a node is kept may depend on any row's draws, except on the
    node's own token and the draws below it. The texts of all rows then have the product of the targets' laws,
    while the text that a seed gives may change with the other rows.

    A batch policy that learns takes the states of its rows in `share`. One that reads rows takes their
    views there, as `share(states, views)`; `grow` gets no view.
    """

    scope: Literal["row", "batch"] = "batch"

    def share(self, states: Sequence[Any]) -> Sequence[Share]:
        """Returns a share for each row of a round that begins.

        Args:
            states: of the rows, as `LearningPolicy.observe` gave them; None for each row of a policy that
                does not learn.
        """
        ...

    def grow(self, root: int, rng: Randomness, share: Share | None = None) -> Growing:
        """Grow a tree as `TreePolicy.grow` does, by the row's `share`; None is that of a single row."""
        ...


class ArrayPolicy(TreePolicy, Protocol):
    """A policy that grows the trees of all rows by one generator, as arrays.

    `grow` of many rows is many generators, and each step of them takes its time on the host. This form is
    for policies whose decisions are made for all rows together, and it is the only one that they have:
    decoding, proofs and `grow` of a single row enter it. Law P holds as for a `BatchPolicy`. A round has one
    law, `Deterministic`, `WithReplacement` or `WithoutReplacement`.
    """

    scope: Literal["row", "batch"] = "batch"

    def grow_together(
        self, roots: Sequence[int], states: Sequence[Any], views: Sequence[RowView | None]
    ) -> GrowingRows:
        """Grow a tree under the token of each of `roots`.

        Yields what `RowTrees.open` gives, is sent the drawn children of all rows, and returns what
        `RowTrees.finish` gives.

        Args:
            roots: one per row.
            states: of the rows, as `LearningPolicy.observe` gave them; None of a policy that does not learn.
            views: of the rows; None where the policy does not read them.
        """
        ...

    def grow(self, root: int, rng: Randomness, state: Any = None, *, view: RowView | None = None) -> Growing:
        """Grow the tree of a row by itself, as `grow_together` does with one row."""
        if state is None and self.learns:
            state = cast("LearningPolicy[Any]", self).first_state()
        return one_row(ArrayGrowth(self.grow_together([root], [state], [view]), [rng]))
