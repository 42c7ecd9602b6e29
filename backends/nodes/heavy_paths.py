"""The order of columns in which the tree kernel visits the fewest blocks."""

from __future__ import annotations

import attrs
import numpy as np

from draftwood.backends.nodes.region import Ints, Staged, packed


def in_heavy_paths(staged: Staged) -> Staged:
    """Returns the nodes with their columns in preorder, the child of the largest subtree first.

    Paths then lie together, and fewer blocks of the mask hold anything (DySpec, appendix C). `staged` is as
    `Region.stage` gives it, in the order of its call.
    """
    rows, n = staged.parents.shape
    start, seen = staged.start, staged.visible
    old, visible = seen[:, :, :start], seen[:, :, start:]
    below: Ints = visible.sum(1, dtype=np.int64)  # how many nodes see each
    depths = visible.sum(2, dtype=np.int64)
    # The parent is the last node that is seen before the node itself; entry -1 stands for none. Nodes below
    # the committed state, or below nodes of earlier calls, are siblings here.
    numbers = np.arange(n)
    others = visible & (numbers != numbers[:, None])
    parents = np.where(depths > 1, n - 1 - others[:, :, ::-1].argmax(2), -1)
    row = np.arange(rows)[:, None]
    # Siblings in a line, the largest subtree first; of equal ones the later.
    line = np.lexsort((-numbers + np.zeros_like(parents), -below, parents), axis=-1)
    sizes, families = below[row, line], parents[row, line]
    before = np.cumsum(sizes, 1) - sizes
    first = np.ones_like(families, dtype=bool)
    first[:, 1:] = families[:, 1:] != families[:, :-1]
    at_first = np.maximum.accumulate(np.where(first, numbers, 0), 1)
    steps = np.empty_like(below)
    steps[row, line] = 1 + before - before[row, at_first]  # from the parent's column
    columns = start - 1 + (visible * steps[:, None]).sum(2)
    order = columns.argsort(1)
    new = visible[row[:, :, None], order[:, :, None], order[:, None]]
    bits = packed(np.concatenate([old[row, order], new], 2))
    return attrs.evolve(staged, bits=bits, depths=staged.depths[row, order], columns=columns)
