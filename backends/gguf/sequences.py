"""The sequences to which the nodes of a tree belong.

llama.cpp keeps one cell for a token, and a cell belongs to sequences. A token sees the earlier cells of its
first sequence. So a node belongs to one sequence for each leaf below it, and the committed text to all
sequences of its row: a tree is one call, and what paths share is computed and kept once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

COMMITTED = -1
"""The parent of nodes that follow the committed text."""


@attrs.frozen
class Copy:
    """A new sequence, which begins as the first `length` tokens of another one."""

    source: int
    to: int
    length: int


@attrs.frozen
class Placement:
    """New nodes of a row.

    Attributes:
        sequences: of every node, one for each leaf below it.
        positions: of every node, tokens before it.
        copies: sequences to make before the nodes are read.
        grown: the row with these nodes.
        cuts: sequences that were there, with their lengths before the nodes were read.
    """

    sequences: list[list[int]]
    positions: list[int]
    copies: list[Copy]
    grown: RowSequences
    cuts: list[tuple[int, int]]


@attrs.frozen
class RowSequences:
    """Committed text and uncommitted nodes of a row. Frozen, so that a failed call leaves it as it was.

    Attributes:
        held: sequences of the row.
        length: committed tokens.
        parents: of the uncommitted nodes, by region index.
        depths: nodes from the committed text to each node, itself included.
        through: a sequence that runs through each node.
        ends: sequences that end at a node, or with the committed text.
    """

    held: tuple[int, ...]
    length: int = 0
    parents: list[int] = attrs.field(factory=list)
    depths: list[int] = attrs.field(factory=list)
    through: list[int] = attrs.field(factory=list)
    ends: dict[int, int] = attrs.field(
        default=attrs.Factory(lambda self: {COMMITTED: self.held[0]}, takes_self=True)
    )

    def place(self, parents: Sequence[int], free: Iterator[int]) -> Placement:
        """Returns the placement of nodes with these parents; `free` gives unused sequences."""
        first = len(self.parents)
        below = list[list[int]]([] for _ in parents)
        ends, copies, cuts = dict(self.ends), list[Copy](), list[tuple[int, int]]()
        depths = list(self.depths)
        for parent in parents:
            depths.append(1 if parent == COMMITTED else depths[parent] + 1)
        inner = {parent - first for parent in parents if parent >= first}
        for leaf in range(len(parents)):
            if leaf in inner:
                continue
            path = [leaf]
            while (above := parents[path[-1]]) >= first:
                path.append(above - first)
            stop = self.length if above == COMMITTED else self.length + depths[above]
            sequence = ends.pop(above, None)
            if sequence is None:
                # Any sequence that holds the path to `above` does.
                source = self.held[0] if above == COMMITTED else self.through[above]
                sequence = next(free)
                copies.append(Copy(source, sequence, stop))
            else:
                cuts.append((sequence, stop))
            for node in path:
                below[node].append(sequence)
            ends[first + leaf] = sequence
        grown = attrs.evolve(
            self,
            held=(*self.held, *(copy.to for copy in copies)),
            parents=[*self.parents, *parents],
            depths=depths,
            through=[*self.through, *(sequences[0] for sequences in below)],
            ends=ends,
        )
        return Placement(below, [self.length + depth - 1 for depth in depths[first:]], copies, grown, cuts)

    def keep(self, path: Sequence[int]) -> RowSequences:
        """Returns the row after a commit of `path`: it holds the one sequence that runs through the path."""
        sequence = self.through[path[-1]] if path else self.held[0]
        return RowSequences((sequence,), self.length + len(path))
