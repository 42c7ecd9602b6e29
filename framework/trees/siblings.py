"""The children of the nodes that policies open: drawn for all rows at once, handed out node by node."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from draftwood.base.errors import InvalidInput
from draftwood.laws.ordered_draws import ChildDraws
from draftwood.laws.proposals import Deterministic, DrawnChildren, Proposal, WithoutReplacement
from draftwood.laws.randomness import NodeStreams, Randomness
from draftwood.trees.level_plan import NO_CHILDREN, LevelPlan, Levels
from draftwood.trees.row_trees import Layer, LayerChildren


@attrs.define(eq=False)
class Opening:
    """Nodes of one row whose children a policy wants drawn; made by `TreeBuilder.open`.

    Attributes:
        tokens: of the nodes.
        parents: the request numbers of their parents, as in `Request`.
        law: by which the children are drawn.
        counts: children of each node that are drawn at once.
        ahead: how many more of a node may be drawn one by one, by `Siblings.draw`.
        total: children of all nodes that are of use; None: no limit. More than these may be drawn.
        floors: for each node a weight; it gets no further child once no more weight than that is left. None:
            no floor.
        plan: a rule for the coming levels, if they depend only on the draft's distributions; else None.
        drafter: the name of the drafter that is asked, as in `Request`.
    """

    tokens: list[int]
    parents: list[int]
    law: type[Proposal]
    counts: Sequence[int]
    ahead: int = 0
    total: int | None = None
    floors: Sequence[float] | None = None
    plan: LevelPlan | None = None
    drafter: str | None = None

    def __len__(self) -> int:
        return len(self.tokens)


class Siblings:
    """The children of one node as they are drawn.

    Attributes:
        tokens: those drawn so far, in drawn order.
        chances: the draft's probability of each.
        weight: the weight from which the next child is drawn: the rest of the distribution, or the
            probability of the most likely token left where the law takes that; 0 where no child is to come.
        law: the class of the law.
        place: the request that asked for the node, and its number there.
    """

    __slots__ = ("_probs", "_row", "chances", "law", "place", "tokens", "weight")

    def __init__(self, law: type[Proposal], probs: Tensor, row: int, place: tuple[int, int]) -> None:
        """Nothing drawn yet.

        Args:
            law: the class of the law.
            probs: the draft's distributions of the request, `[rows, nodes, *drafters, vocab]`.
            row: of the node.
            place: as above.
        """
        self.law, self._probs, self._row, self.place, self.weight = law, probs, row, place, 0.0
        self.tokens: list[int] = []
        self.chances: list[float] = []

    def draw(self) -> bool:
        """Draw one more child, the last of `tokens`; whether there is one."""
        return False

    def pick(self, places: Sequence[int]) -> None:
        """Leave out all children but those at these places, where the law takes the most likely tokens."""
        places = [place for place in places if place < len(self.tokens)]
        self.tokens = [self.tokens[place] for place in places]
        self.chances = [self.chances[place] for place in places]

    def proposal(self, tokens: Sequence[int]) -> Proposal:
        """The law by which the first children were drawn, which are `tokens`."""
        if self.law is Deterministic:
            probs = self._probs
            return Deterministic(tokens, probs.shape[-1], probs.dtype, probs.device)
        return self.law(self._p)  # type: ignore[call-arg]

    @property
    def _p(self) -> Tensor:
        """Returns the node's distribution `[vocab]`, or one per drafter."""
        return self._probs[self._row, self.place[1]]


class _AllAtOnce(Siblings):
    """Children of a law that draws all of them at once and describes them itself."""

    __slots__ = ("_law",)

    def __init__(self, probs: Tensor, row: int, place: tuple[int, int], drawn: DrawnChildren) -> None:
        super().__init__(type(drawn.proposal), probs, row, place)
        self.tokens, self.chances = list(drawn.tokens), list(drawn.chances)
        self._law = drawn.proposal

    def proposal(self, tokens: Sequence[int]) -> Proposal:
        return self._law


class _Likeliest(Siblings):
    """The most likely tokens, in that order."""

    __slots__ = ("_ranking",)

    def __init__(
        self,
        probs: Tensor,
        row: int,
        place: tuple[int, int],
        ranking: tuple[list[int], list[float]],
        count: int,
    ) -> None:
        super().__init__(Deterministic, probs, row, place)
        tokens, chances = ranking
        self._ranking = ranking
        while count and chances[count - 1] <= 0:
            count -= 1
        self.tokens, self.chances = tokens[:count], chances[:count]
        self.weight = chances[count] if count < len(chances) else 0.0

    def draw(self) -> bool:
        if self.weight <= 0:
            return False
        tokens, chances = self._ranking
        rank = len(self.tokens)
        self.tokens.append(tokens[rank])
        self.chances.append(chances[rank])
        self.weight = chances[rank + 1] if rank + 1 < len(chances) else 0.0
        return True


class _Sampled(Siblings):
    """Drawn without replacement, one by one, from any source of chance."""

    __slots__ = ("_rng",)

    def __init__(self, probs: Tensor, row: int, place: tuple[int, int], rng: Randomness) -> None:
        super().__init__(WithoutReplacement, probs, row, place)
        self._rng = rng
        self.weight = float(self._p.sum(dtype=torch.float64))

    def draw(self) -> bool:
        if not self.weight > 0:
            return False
        # Made anew for every draw: kept, it would hold twice the memory of `p` for every node of the tree.
        rest = self._p.to(torch.float64, copy=True)
        if self.tokens:
            rest[self.tokens] = 0
        token = self._rng.choose(rest)
        self.tokens.append(token)
        self.chances.append(float(rest[token]))
        rest[token] = 0
        self.weight = float(rest.sum())
        return True


class _FromDraws(Siblings):
    """Drawn without replacement, from the draws of a level."""

    __slots__ = ("_draws",)

    def __init__(
        self,
        probs: Tensor,
        row: int,
        place: tuple[int, int],
        draws: ChildDraws,
        drawn: tuple[list[int], list[float], float],
    ) -> None:
        # Written out: a base class's own `__init__` would take as long again, for every node.
        self.law, self._probs, self._row, self.place = WithoutReplacement, probs, row, place
        self._draws, (self.tokens, self.chances, self.weight) = draws, drawn

    def draw(self) -> bool:
        if not self.weight > 0:
            return False
        token, chance, self.weight = self._draws.next_of(self._row, self.place[1])
        if token < 0:
            return False
        self.tokens.append(token)
        self.chances.append(chance)
        return True


class FollowedLevels:
    """One row's siblings, from the levels that a drafter grew by itself.

    Candidates that are worth too little for any tree of the plan are left out, as are the children of nodes
    that the drafter did not expand for that reason.
    """

    def __init__(self, levels: Levels, row: int, probs: Tensor, *, least: float) -> None:
        """Start from the root.

        Args:
            levels: of all rows.
            row: index of the row.
            probs: `[rows, nodes, vocab]`, of the size and dtype of a distribution.
            least: the lowest value of a node in the row's tree.
        """
        self._children, self._probs = levels.children(row, least=least), probs
        self._nodes: list[tuple[int, int]] = []  # level and number of what was opened, by request number

    def open(self, opening: Opening) -> list[Siblings]:
        """The siblings of the nodes that the policy opens next."""
        found: list[Siblings] = []
        for token, parent, count in zip(opening.tokens, opening.parents, opening.counts, strict=True):
            node = (-1, 0)
            if parent >= 0:
                level, _ = self._nodes[parent]
                numbers, tokens, _ = self._children.get(self._nodes[parent], NO_CHILDREN)
                node = level + 1, numbers[tokens.index(token)] if token in tokens else -1
            self._nodes.append(node)
            _, tokens, chances = self._children.get(node, NO_CHILDREN)
            ranking = tokens[:count], chances[:count]
            found.append(_Likeliest(self._probs, 0, (0, 0), ranking, len(ranking[0])))
        return found


def drawn(
    law: type[Proposal],
    probs: Float[Tensor, "rows nodes *drafters vocab"],
    row: int,
    opening: Opening,
    rng: Randomness,
    *,
    level: int,
) -> list[Siblings]:
    """Returns the siblings of the nodes that one row opens, by any law and any source of chance.

    Args:
        law: of the opening.
        probs: the draft's distributions of all rows, padded.
        row: that opens the nodes.
        opening: the nodes.
        rng: the row's draft stream. A node's children are drawn by a stream of the node's own.
        level: the number of the request.
    """
    nodes = len(opening)
    if opening.ahead and law is not WithoutReplacement:
        raise InvalidInput(
            f"{law.__name__} draws all children of a node at once; open nodes with counts and without ahead."
        )
    if opening.ahead:
        found: list[Siblings] = []
        for column, own in enumerate(rng.nodes(nodes)):
            found.append(_Sampled(probs, row, (level, column), own))
            for _ in range(opening.counts[column]):
                found[-1].draw()
        return found
    total = sys.maxsize if opening.total is None else opening.total
    children = law.draw_nodes(probs[row, :nodes], counts=opening.counts, rng=rng, total=total)
    # Nodes after the last of the total are left out.
    return [
        _AllAtOnce(probs, row, (level, column), children[column])
        if column < len(children)
        else Siblings(law, probs, row, (level, column))
        for column in range(nodes)
    ]


def most_likely(
    probs: Float[Tensor, "rows nodes vocab"], openings: Sequence[Opening | None], *, level: int
) -> list[list[Siblings]]:
    """Returns the most likely tokens of all nodes that rows open; an empty list for a row that opens none."""
    most = max(max(opening.counts) + opening.ahead for opening in openings if opening is not None)
    tokens, chances = top_tokens(probs, most)
    width = len(tokens[0][0])
    return [
        [
            _Likeliest(
                probs, row, (level, column), (tokens[row][column], chances[row][column]), min(count, width)
            )
            for column, count in enumerate(() if opening is None else opening.counts)
        ]
        for row, opening in enumerate(openings)
    ]


def top_tokens(
    probs: Float[Tensor, "rows nodes vocab"], count: int
) -> tuple[list[list[list[int]]], list[list[list[float]]]]:
    """The `count` most likely tokens of every node and their probabilities, `[rows, nodes, count]`."""
    tokens, chances = _top_arrays(probs, count)
    return tokens.tolist(), chances.tolist()


def _top_arrays(probs: Tensor, count: int) -> tuple[NDArray[np.int64], NDArray[np.floating[Any]]]:
    top = probs.topk(min(count, probs.shape[-1]))
    if probs.device.type == "cpu":
        return top.indices.numpy(), top.values.numpy()
    # One result to wait for; float32 counts to 2**24, and no vocabulary is larger.
    read = torch.stack([top.values.float(), top.indices.float()]).cpu().numpy()
    return read[1].astype(np.int64), read[0]


def layer_children(
    probs: Float[Tensor, "rows nodes vocab"],
    layer: Layer,
    rngs: Sequence[Randomness],
    streams: NodeStreams | None,
    *,
    level: int,
) -> LayerChildren:
    """Returns the children of a layer's nodes, drawn by its law.

    Args:
        probs: the draft's distributions, padded.
        layer: the nodes.
        rngs: draft streams of all rows; a node's children are drawn by a stream of the node's own.
        streams: `NodeStreams.of(rngs)`.
        level: the number of the request.
    """
    if layer.law is Deterministic:
        tokens, likeliest = _top_arrays(probs, layer.children)
        return LayerChildren(tokens, likeliest.astype(np.float64))
    if layer.law is WithoutReplacement and streams is not None:
        width = np.arange(probs.shape[1])
        limits = np.where(width < np.array(layer.counts)[:, None], layer.children, -1)
        draws = ChildDraws(probs, streams.take(layer.counts), limits, most=layer.children)
        return LayerChildren(draws.tokens, draws.chances)
    shape = *probs.shape[:2], layer.children
    found = LayerChildren(np.full(shape, -1), np.zeros(shape))
    for row, (count, rng) in enumerate(zip(layer.counts, rngs, strict=True)):
        opening = Opening([0] * count, [-1] * count, layer.law, [layer.children] * count)
        for column, one in enumerate(drawn(layer.law, probs, row, opening, rng, level=level)):
            found.tokens[row, column, : len(one.tokens)] = one.tokens
            found.chances[row, column, : len(one.chances)] = one.chances
    return found


def drawn_ahead(
    probs: Float[Tensor, "rows nodes vocab"],
    openings: Sequence[Opening | None],
    streams: NodeStreams,
    *,
    level: int,
) -> list[list[Siblings]]:
    """Returns draws without replacement of all nodes that rows open; an empty list for a row that opens none.

    The numbers are those that `drawn` would use: `streams` shows them in advance.
    """
    rows, width = probs.shape[:2]
    nodes, most, ahead, floors = [0] * rows, 0, 0, None
    limits = np.empty((rows, width), np.int64)
    limits.fill(-1)
    for row, opening in enumerate(openings):
        if opening is not None:
            nodes[row] = count = len(opening.tokens)
            limits[row, :count] = opening.counts
            most, ahead = max(most, *opening.counts), max(ahead, opening.ahead)
            if opening.floors is not None:
                floors = np.zeros((rows, width)) if floors is None else floors
                floors[row, :count] = opening.floors
    draws = ChildDraws(probs, streams.take(nodes), limits, most=most, ahead=ahead, floors=floors)
    tokens, chances, left = draws.tokens.tolist(), draws.chances.tolist(), draws.left.tolist()
    found: list[list[Siblings]] = []
    for row, count in enumerate(nodes):
        siblings: list[Siblings] = []
        for column in range(count):
            first, weights_of = tokens[row][column], chances[row][column]
            if most and first[-1] < 0:
                length = first.index(-1)
                first, weights_of = first[:length], weights_of[:length]
            so_far = first, weights_of, left[row][column]
            siblings.append(_FromDraws(probs, row, (level, column), draws, so_far))
        found.append(siblings)
    return found
