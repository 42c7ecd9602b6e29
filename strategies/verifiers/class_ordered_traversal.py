"""Traversal verification over siblings in class order."""

from __future__ import annotations

import attrs

from draftwood.fields import probability
from draftwood.proposals import WithoutReplacement
from draftwood.strategies.verifiers.class_order import ClassOrder
from draftwood.strategies.verifiers.foresight import Foresight
from draftwood.strategies.verifiers.residual import DrawnOrder, SiblingOrder, Trial
from draftwood.strategies.verifiers.traversal import Judged, Traversal


@attrs.frozen
class ClassOrderedTraversal(Traversal):
    """`Traversal` that tries under-proposed siblings first, and lucky ones (see `ClassOrder`, `Foresight`).

    Siblings drawn without replacement are put in order; those of other laws are tried as drawn.

    Attributes:
        luck: the chance b of `Foresight`, 0 for none. Of two siblings of one class the one whose first
            child is a lucky draw goes first.
        phantoms: what adaptive trees (DySpec) need, because there a sibling's existence tells of the
            ones before it; on other trees the full window is stronger. Luck is not used with them.

    Source: draftwood; the traversal is arXiv 2505.12398's.
    """

    luck: float = attrs.field(default=0.0, validator=probability)
    phantoms: bool = False
    source = "draftwood"

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.phantoms

    def siblings(self, judged: Judged, node: int, trial: Trial | None) -> SiblingOrder:
        proposal = judged.tree.proposals[node]
        if not isinstance(proposal, WithoutReplacement):
            return DrawnOrder(judged.below(node), proposal)
        first = proposal.p
        if trial is not None and trial.levels is not None:
            first = self._foresight(judged, node).first_child(trial.levels)
        if self.phantoms or not self.luck:
            return ClassOrder(judged.below(node), proposal.p, first, judged.rng, self.phantoms)
        return ClassOrder(
            judged.below(node),
            proposal.p,
            first,
            judged.rng,
            chances=first.new_tensor([1 - self.luck, self.luck]),
            level=lambda place: self._level(judged, judged.tree.children(node)[place]),
        )

    def _foresight(self, judged: Judged, node: int) -> Foresight:
        proposal = judged.tree.proposals[node]
        assert isinstance(proposal, WithoutReplacement)
        return Foresight.of(judged.targets[node], proposal.p, self.luck)

    def _level(self, judged: Judged, node: int) -> int:
        """1 if `node` is lucky; by a coin where nothing is below it, so that its leaf tells nothing."""
        below = judged.below(node)
        seen = below and isinstance(judged.tree.proposals[node], WithoutReplacement)
        return int(judged.rng.accept(self._foresight(judged, node)[below[0]] if seen else self.luck))
