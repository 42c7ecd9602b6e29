"""`TimedRounds`: the seconds of rounds outside of their passes, timed while rounds are written."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median, median_high
from typing import Any, cast

import attrs
import numpy as np

from draftwood.decoding.decoder import SpeculativeDecoder
from draftwood.decoding.round_records import Round
from draftwood.distributions.sampling import SamplingParams
from draftwood.laws.proposals import Proposal
from draftwood.protocols import ArrayPolicy, Drafter, LearningPolicy, StateBackend, registry
from draftwood.protocols.pass_costs import PassCosts, PassTable
from draftwood.protocols.row_view import RowView
from draftwood.trees.outcome import Outcome
from draftwood.trees.row_trees import GrowingRows, RowTrees
from draftwood.trees.tree import TokenTree

SHAPES = ({"budget": 1, "depth": 1}, {"budget": 8, "depth": 1}, {"budget": 8, "depth": 4})
"""Options of the policy that weighs costs: trees of one node, of one layer, and of several."""

BLOCK = 4
"""Rounds of one shape in a row; the first, which comes after one of another size, does not count."""

TOKENS = BLOCK * sum(1 + 1 + int(shape["depth"]) for shape in SHAPES)
"""Tokens that rounds of all shapes write at most, with those without a tree between them."""


@attrs.frozen
class Turn:
    """The state of a row in `InTurns`: how many rounds there were, and the state of the policy."""

    number: int
    state: Any


@attrs.frozen
class InTurns(ArrayPolicy, LearningPolicy[Turn]):
    """A few rounds without a tree, some with trees of the first policy, some without, and so on.

    Attributes:
        policies: of one class, whose states are of one class too.
    """

    policies: tuple[Any, ...]
    reads_row = True

    @property
    def laws(self) -> frozenset[type[Proposal]]:  # type: ignore[override]
        return cast("frozenset[type[Proposal]]", self.policies[0].laws)

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return bool(self.policies[0].adaptive)

    def first_state(self) -> Turn:
        return Turn(0, self.policies[0].first_state())

    def shape(self, number: int) -> int | None:
        """Returns the policy's number in round `number`; None: no tree."""
        block = number // BLOCK
        return block // 2 % len(self.policies) if block % 2 else None

    def grow_together(
        self, roots: Sequence[int], states: Sequence[Any], views: Sequence[RowView | None]
    ) -> GrowingRows:
        shape = self.shape(states[0].number)
        if shape is None:
            return RowTrees(roots, most=1).finish(notes=[None] * len(roots))
        grown: RowTrees = yield from self.policies[shape].grow_together(
            roots, [state.state for state in states], views
        )
        return grown

    def observe(self, state: Turn, outcome: Outcome, tree: TokenTree) -> Turn:
        shape = self.shape(state.number)
        after = state.state
        if shape is not None:
            after = self.policies[shape].observe(after, outcome, tree)
        return Turn(state.number + 1, after)


@attrs.frozen
class Timed:
    """Rounds of one shape.

    Attributes:
        shape: its number in `SHAPES`; None: without a tree.
        taken: their times, in passes over one node a row at that moment.
        nodes: of the largest tree of each, with its root.
        layers: draft calls of each.
    """

    shape: int | None
    taken: list[float] = attrs.field(factory=list)
    nodes: list[int] = attrs.field(factory=list)
    layers: list[int] = attrs.field(factory=list)

    def outside(self, passes: PassCosts, unit: float, at: dict[str, Any]) -> list[float]:
        """Returns the seconds outside of a pass and draft calls, where a pass over one node takes `unit`."""
        known = [
            passes.target(nodes, **at) + passes.tree_seconds(nodes, layers, **at)
            for nodes, layers in zip(self.nodes, self.layers, strict=True)
        ]
        return [max(unit * taken - float(of), 0.0) for taken, of in zip(self.taken, known, strict=True)]


class TimedRounds:
    """Writes texts whose rounds have no tree, a small, a flat and a deep one in turns, and times them.

    A round is compared with the passes of the rounds without a tree just before it. What it takes besides its
    passes is all work on the host, and the time by which passes and calls are slower in a round, where the
    draft reads the accepted tokens first and other work has come between.
    """

    def __init__(self, target: StateBackend, drafter: Drafter, temperature: float) -> None:
        law = "without-replacement" if temperature > 0 else "top-k"
        # The policy that weighs costs chooses node by node, which takes longer than a fixed shape. All sizes
        # cost the same here, so that it draws what it can.
        shapes = [registry.create("policies", "throughput-dyspec", shape | {"law": law}) for shape in SHAPES]
        self._policy = InTurns(tuple(shapes))
        verifier = registry.create("verifiers", "recursive-rejection" if temperature > 0 else "greedy")
        free = PassCosts(PassTable([(size, 1, 1, 1.0) for size in (1, 9)]))
        self._decoder = SpeculativeDecoder(target, drafter, self._policy, verifier, pass_costs=free)
        self._sampling = SamplingParams(temperature=temperature)
        self._timed = {shape: Timed(shape) for shape in (None, *range(len(SHAPES)))}
        self._at: dict[str, Any] = {}

    def write(self, batch: Sequence[Sequence[int]]) -> None:
        """Write a text in each row of `batch`, its rounds in turns."""
        self._at = {"rows": len(batch), "context": len(batch[0])}
        rounds = self._decoder.stream(
            batch, max_new_tokens=TOKENS, sampling=self._sampling, seed=0, eos_token_id=[]
        )
        smallest: list[float] = []
        written = (one for one in rounds if not one.prefill)
        for number, one in enumerate(written):
            place, shape = number % BLOCK, self._policy.shape(number)
            if len(one.rows) < len(batch) or number >= 2 * BLOCK * len(SHAPES):
                rounds.close()
                return
            if shape is None:
                smallest = [*smallest, one.target_seconds] if place else []
            if place and smallest:
                self._note(self._timed[shape], one, median(smallest))

    def by_nodes(self, passes: PassCosts, *, unit: float) -> tuple[dict[int, list[float]], float]:
        """Returns seconds outside of passes by nodes of a tree, its layers left out, and of a layer.

        Args:
            passes: what passes and draft calls take.
            unit: seconds of a pass over one node a row.
        """
        timed = list(self._timed.values())
        outside = [of.outside(passes, unit, self._at) for of in timed]
        sizes = [median_high(of.nodes) for of in timed]
        layers = median_high(timed[-1].layers) - 1
        *flat, deep = map(median, outside)
        of_nodes = float(np.interp(sizes[-1], sizes[:-1], flat))
        layer = (deep - of_nodes) / layers if layers > 0 else 0.0
        # The only layer of a tree with one node takes no more than that tree does.
        layer = max(min(layer, flat[1] - flat[0]), 0.0)
        times: dict[int, list[float]] = {}
        for size, besides in zip(sizes[:-1], outside[:-1], strict=True):
            grown = layer if size > 1 else 0.0
            times.setdefault(size, []).extend(max(one - grown, 0.0) for one in besides)
        return times, layer

    @staticmethod
    def _note(timed: Timed, one: Round, smallest: float) -> None:
        timed.taken.append(one.seconds / smallest)
        timed.nodes.append(1 + max(row.outcome.drafted for row in one.rows))
        timed.layers.append(one.draft_calls)
