"""Traversal verification over siblings in class order."""

from __future__ import annotations

import attrs

from draftwood.errors import InvalidInput
from draftwood.proposals import WithoutReplacement
from draftwood.strategies.verifiers.class_order import ClassOrder
from draftwood.strategies.verifiers.foresight import Foresight
from draftwood.strategies.verifiers.residual import DrawnOrder, SiblingOrder, Trial
from draftwood.strategies.verifiers.traversal import Judged, Traversal


def _share(verifier: ClassOrderedTraversal, __: object, luck: float) -> None:
    if not 0 <= luck < 1:
        raise InvalidInput(f"luck is {luck}; it is a probability below 1, and 0 for none.")
    if luck and verifier.phantoms:
        raise InvalidInput(f"luck is {luck} together with phantoms; on adaptive trees leave it at 0.")


@attrs.frozen
class ClassOrderedTraversal(Traversal):
    """`Traversal` that tries under-proposed siblings first, and lucky ones (see `ClassOrder`, `Foresight`).

    Siblings drawn without replacement are put in order; those of other laws are tried as drawn.

    Attributes:
        phantoms: what adaptive trees (DySpec) need, because there a sibling's existence tells of the
            ones before it; on other trees the full window is stronger. Not together with luck.
        luck: the chance b of `Foresight`, 0 for none. Of two siblings of one class the one whose first
            child is a lucky draw goes first. Needs local trees: the shape of one subtree must not tell of
            the tokens in another. Worth it on toy models where nodes below the first level have one
            child; on real ones no gain over chance was seen (docs/verifiers.md).

    Cost: about 15 passes over the vocabulary for every pair of siblings that is visited, 25 with luck.

    Source: draftwood; the traversal is arXiv 2505.12398's.
    """

    phantoms: bool = False
    luck: float = attrs.field(default=0.0, validator=_share)
    source = "draftwood"

    @property
    def adaptive(self) -> bool:  # type: ignore[override]
        return self.phantoms

    @property
    def local(self) -> bool:  # type: ignore[override]
        return self.luck > 0

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
        children = judged.tree.children(node)
        if not children or not isinstance(judged.tree.proposals[node], WithoutReplacement):
            return int(judged.rng.accept(self.luck))
        return int(judged.rng.accept(self._foresight(judged, node)[judged.tokens[children[0]]]))
