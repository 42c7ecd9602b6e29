"""The sequences of nodes: what a node sees by them is its own path, after any calls."""

from __future__ import annotations

import random
from collections.abc import Iterator

from draftwood.backends.gguf.sequences import COMMITTED, Placement, RowSequences


class Cells:
    """llama.cpp's cells: which tokens belong to a sequence, and what one that is read sees."""

    def __init__(self) -> None:
        self.cells: list[tuple[int, int, set[int]]] = []  # name, position, sequences

    def positions(self, sequence: int) -> list[int]:
        return sorted(place for _, place, joined in self.cells if sequence in joined)

    def read(self, placed: Placement, names: list[int]) -> list[list[int]]:
        for copy in placed.copies:
            assert not self.positions(copy.to)
            for _, place, joined in self.cells:
                if copy.source in joined and place < copy.length:
                    joined.add(copy.to)
        before = {one: self.positions(one) for sequences in placed.sequences for one in sequences}
        seen = []
        for name, place, sequences in zip(names, placed.positions, placed.sequences, strict=True):
            # Coupled sequences hold the same before the call, and every sequence goes on without a hole.
            assert len({tuple(before[one]) for one in sequences}) == 1
            for one in sequences:
                assert self.positions(one) == list(range(place))
            self.cells.append((name, place, set(sequences)))
            mine = [cell for cell in self.cells if sequences[0] in cell[2] and cell[1] <= place]
            seen.append([name for name, _, _ in sorted(mine, key=lambda cell: cell[1])])
        return seen

    def forget(self, sequence: int, length: int = 0) -> None:
        for _, place, joined in self.cells:
            if place >= length:
                joined.discard(sequence)
        self.cells = [cell for cell in self.cells if cell[2]]


def free(row: RowSequences) -> Iterator[int]:
    return iter([number for number in range(100) if number not in row.held])


def test_nodes_see_their_paths_over_random_calls_and_commits() -> None:
    rng = random.Random(0)
    for _ in range(150):
        cells, row, text, name = Cells(), RowSequences((0,)), list[int](), 0
        for _ in range(4):
            parents, names = list[int](), list[int]()
            for _ in range(rng.randint(0, 3)):
                start, count = len(parents), rng.randint(0, 8)
                new = [rng.randint(-1, start + node - 1) for node in range(count)]
                named = list(range(name, name + count))
                name, names, parents = name + count, names + named, parents + new
                placed = row.place(new, free(row))
                leaves = count - len({parent for parent in new if parent >= start})
                assert len(placed.copies) <= leaves
                assert len({one for sequences in placed.sequences for one in sequences}) == leaves
                for node, seen in enumerate(cells.read(placed, named), start):
                    assert seen == text + [names[step] for step in path(parents, node)]
                row = placed.grown
            kept = path(parents, rng.randint(-1, len(parents) - 1))
            after = row.keep(kept)
            for one in row.held:
                cells.forget(one, after.length if one in after.held else 0)
            text += [names[node] for node in kept]
            row = after
            assert sorted(cells.cells) == [
                (one, place, set(row.held)) for one, place in sorted(zip(text, range(len(text)), strict=True))
            ]


def path(parents: list[int], node: int) -> list[int]:
    found = list[int]()
    while node != COMMITTED:
        found.append(node)
        node = parents[node]
    return found[::-1]


def test_a_chain_needs_no_sequence_but_its_row_s() -> None:
    placed = RowSequences((5,), 7).place([-1, 0, 1], iter(()))
    assert placed.sequences == [[5]] * 3
    assert (placed.positions, placed.copies, placed.cuts) == ([7, 8, 9], [], [(5, 7)])
    assert placed.grown.keep([0, 1]) == RowSequences((5,), 9)
