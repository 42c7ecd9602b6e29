"""Room for the children of a row's nodes in one layer, and what each is expected to be worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from draftwood import Deterministic, Siblings
from draftwood.strategies.acceptance_history import AcceptanceRates


class DrawnNode(NamedTuple):
    """A drawn child of a layer.

    Attributes:
        parent: number of its parent in the layer above.
        rank: among its siblings.
        chance: the draft's probability of it, given that the earlier siblings failed.
        accepted: the estimated probability that the verifier accepts it.
    """

    parent: int
    rank: int
    chance: float
    accepted: float


class LayerSlots:
    """Room for the next child of each node that a row has in a layer.

    Attributes:
        values: the estimated probability that each node's next child is accepted, known before its token is
            drawn; 0 where no token is left.
        judged: the estimated probability that the verifier comes to judge it.
        ranks: of it among its siblings.
        value: the largest of the values.
        drawn: nodes, in drawn order.
        best_drawn: the largest probability of acceptance of a drawn node; 0 where there is none.
    """

    __slots__ = ("_left", "_rates", "_siblings", "best_drawn", "drawn", "judged", "ranks", "value", "values")

    def __init__(
        self, siblings: Sequence[Siblings], accepted: Sequence[float], rates: AcceptanceRates
    ) -> None:
        """`accepted`: of each node the estimated probability that it is."""
        nodes = len(siblings)
        self._siblings, self._rates, self._left = siblings, rates, [1.0] * nodes  # of the distributions
        self.judged, self.ranks = list(accepted), [0] * nodes
        self.drawn, self.best_drawn = list[DrawnNode](), 0.0
        self.values = [self._estimated(node) for node in range(nodes)]
        self.value = max(self.values, default=0.0)

    def _estimated(self, node: int) -> float:
        siblings = self._siblings[node]
        weight = siblings.weight
        if weight <= 0:
            return 0.0
        if siblings.law is Deterministic:
            rate = self._rates.known(self.ranks[node], self._share(node, weight))
        else:
            rate = self._rates.unknown(self.ranks[node])
        return self.judged[node] * rate

    def _share(self, node: int, weight: float) -> float:
        left = self._left[node]
        return weight / left if weight < left else 1.0

    def in_order(self) -> list[DrawnNode]:
        """Returns the drawn nodes by parent and rank."""
        return sorted(self.drawn, key=_parent_and_rank) if len(self.drawn) > 1 else self.drawn

    def draw(self) -> bool:
        """Draw one more child where it is worth most; whether there is one."""
        while self.value > 0:
            node = self.values.index(self.value)
            drawn = self._siblings[node].draw()
            if drawn:
                self._take(node)
            self.values[node] = self._estimated(node) if drawn else 0.0
            self.value = max(self.values)
            if drawn:
                return True
        return False

    def _take(self, node: int) -> None:
        rank, judged, weight = self.ranks[node], self.judged[node], self._siblings[node].chances[-1]
        chance = self._share(node, weight)
        rate = self._rates.known(rank, chance)
        accepted = judged * rate
        self.drawn.append(DrawnNode(node, rank, chance, accepted))
        self.best_drawn = max(self.best_drawn, accepted)
        self._left[node] = max(self._left[node] - weight, 0.0)
        self.judged[node], self.ranks[node] = judged - accepted, rank + 1


def _parent_and_rank(node: DrawnNode) -> tuple[int, int]:
    return node.parent, node.rank
