"""`RowTrees`: the trees of all rows of a round while they grow layer by layer, as arrays."""

from __future__ import annotations

from collections.abc import Generator, Sequence

import attrs
import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from draftwood.base.errors import InvalidTree
from draftwood.kernels.machine_code import compiled
from draftwood.laws.proposals import Deterministic, Proposal

_TOKEN, _PARENT, _DEPTH, _REQUEST, _LEVEL, _COLUMN = range(6)
"""Numbers of a node: its token, parent and depth, its request number, and the request that asked for it with
its number there; -1 where it was not asked for."""


@attrs.frozen(eq=False)
class Layer:
    """Nodes of all rows whose children a policy wants drawn; made by `RowTrees.open`.

    Attributes:
        tokens: of the nodes, int64 `[rows, nodes]`; 0 of padding.
        parents: request numbers of their parents, as in `Request`, int64 `[rows, nodes]`; -1 of padding.
        counts: nodes of every row.
        law: by which the children are drawn.
        children: of a node, at most.
    """

    tokens: Int[np.ndarray, "rows nodes"]
    parents: Int[np.ndarray, "rows nodes"]
    counts: Sequence[int]
    law: type[Proposal]
    children: int


@attrs.frozen(eq=False)
class LayerChildren:
    """The children that were drawn for the nodes of a `Layer`, in drawn order.

    Attributes:
        tokens: int64 `[rows, nodes, children]`; of no meaning where there is none.
        chances: the draft's probability of each, float64; 0 where there is none.
    """

    tokens: Int[np.ndarray, "rows nodes children"]
    chances: Float[np.ndarray, "rows nodes children"]


class RowTrees:
    """Grows the trees of all rows side by side. Nodes are numbers, the root is 0.

    Attributes:
        sizes: nodes of every row, int64 `[rows]`.
        law: by which all children were drawn.
        notes: of the trees, as in `TokenTree`.
    """

    def __init__(self, roots: Sequence[int], *, most: int) -> None:
        """Trees of one root each.

        Args:
            roots: tokens, one per row.
            most: nodes that a tree may have besides.
        """
        rows = len(roots)
        self._numbers = np.full((6, rows, most + 1), -1)
        self._numbers[_TOKEN], self._numbers[_DEPTH] = 0, 0
        self._numbers[_TOKEN, :, 0] = roots
        self.sizes = np.ones(rows, np.int64)
        self.law: type[Proposal] = Deterministic
        self.notes: tuple[object, ...] = ()
        self._leaves = np.zeros(rows, np.int64)  # the first of every row
        self._requested, self._level = np.zeros(rows, np.int64), 0
        self._opened, self._counts = np.zeros((rows, 0), np.int64), np.zeros(rows, np.int64)

    def open(
        self,
        places: Int[np.ndarray, "rows nodes"],
        counts: Int[np.ndarray, " rows"],
        law: type[Proposal],
        *,
        children: int,
    ) -> Layer:
        """Ask for children of leaves; the answer is a `LayerChildren`, some of which `add` takes.

        Args:
            places: numbers of leaves, counted from the first one that was added last in the row.
            counts: leaves of every row; what follows in `places` is padding.
            law: the class of a law, the same for the whole tree.
            children: of a leaf at most; fewer are drawn where fewer tokens have probability above 0.

        Raises:
            InvalidTree: a place where there is no leaf, or another law than before.
        """
        if self._level and law is not self.law:
            raise InvalidTree(
                f"A layer is opened by {law.__name__} after one by {self.law.__name__}; take one law."
            )
        self.law, self._counts = law, counts
        self._opened, tokens, parents, wrong = _opened(
            self._numbers, places, counts, self._leaves, self.sizes, self._requested, self._level
        )
        if wrong >= 0:
            raise InvalidTree(
                f"Row {wrong} opens a leaf that it does not have: places {places[wrong].tolist()} of "
                f"{self.sizes[wrong] - self._leaves[wrong]} leaves; give places of the last ones added."
            )
        self._level += 1
        return Layer(tokens, parents, counts.tolist(), law, children)

    def add(self, drawn: LayerChildren, kept: Int[np.ndarray, "rows nodes"]) -> None:
        """Add the first `kept` children of every opened leaf; they are the next leaves, in this order.

        Raises:
            InvalidTree: more children than were drawn, or more nodes than there is room for.
        """
        wrong = _add(self._numbers, self._opened, self._counts, drawn.tokens, kept, self.sizes, self._leaves)
        if wrong >= 0:
            raise InvalidTree(
                f"Row {wrong} keeps {kept[wrong].tolist()} children of its leaves, of at most "
                f"{drawn.tokens.shape[2]} that were drawn, and has {self.sizes[wrong]} of "
                f"{self._numbers.shape[2]} nodes; keep fewer."
            )

    def finish(self, *, notes: Sequence[object] = ()) -> RowTrees:
        """Returns the trees, with a `TokenTree.note` for every row."""
        self.notes = tuple(notes)
        return self

    def arrays(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Returns tokens, parents, depths and `asked`, as in `TreeBatch`."""
        size = int(self.sizes.max())
        tokens, parents, depths = np.ascontiguousarray(self._numbers[:_REQUEST, :, :size])
        asked = np.ascontiguousarray(np.moveaxis(self._numbers[_LEVEL:, :, :size], 0, -1))
        return tokens, parents, depths, asked


GrowingRows = Generator[Layer, LayerChildren, RowTrees]
"""The generator of `ArrayPolicy.grow_together`: yields layers, receives children, and returns the trees."""


@compiled
def _opened(
    numbers: NDArray[np.int64],
    places: NDArray[np.int64],
    counts: NDArray[np.int64],
    leaves: NDArray[np.int64],
    sizes: NDArray[np.int64],
    requested: NDArray[np.int64],
    level: int,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], int]:
    """Number the opened leaves as requests; returns them, their tokens, and their parents' numbers.

    And a row that opens what is no leaf of its; -1 where none does.
    """
    opened = np.full(places.shape, -1)
    tokens, parents = np.zeros(places.shape, np.int64), np.full(places.shape, -1)
    wrong = -1
    for row in range(len(counts)):
        for column in range(counts[row]):
            if column >= places.shape[1] or not 0 <= places[row, column] < sizes[row] - leaves[row]:
                wrong = row
                break
            node = leaves[row] + places[row, column]
            parent = numbers[_PARENT, row, node]
            opened[row, column], tokens[row, column] = node, numbers[_TOKEN, row, node]
            if parent >= 0:
                parents[row, column] = numbers[_REQUEST, row, parent]
            numbers[_REQUEST, row, node] = requested[row]
            numbers[_LEVEL, row, node], numbers[_COLUMN, row, node] = level, column
            requested[row] += 1
    return opened, tokens, parents, wrong


@compiled
def _add(
    numbers: NDArray[np.int64],
    opened: NDArray[np.int64],
    counts: NDArray[np.int64],
    tokens: NDArray[np.int64],
    kept: NDArray[np.int64],
    sizes: NDArray[np.int64],
    leaves: NDArray[np.int64],
) -> int:
    """Write the first `kept` children of the opened leaves after the nodes so far.

    Returns a row that keeps more than there are, or than there is room for; -1 where none does.
    """
    for row in range(len(counts)):
        added = 0
        for column in range(counts[row]):
            if column >= kept.shape[1] or not 0 <= kept[row, column] <= tokens.shape[2]:
                return row
            added += kept[row, column]
        if sizes[row] + added > numbers.shape[2]:
            return row
        leaves[row] = sizes[row]
        for column in range(counts[row]):
            parent = opened[row, column]
            for rank in range(kept[row, column]):
                node = sizes[row]
                numbers[_TOKEN, row, node], numbers[_PARENT, row, node] = tokens[row, column, rank], parent
                numbers[_DEPTH, row, node] = numbers[_DEPTH, row, parent] + 1
                sizes[row] += 1
    return -1
