"""The few shapes that captured passes have; whatever is smaller is padded.

Nodes: powers of two up to 64, which are the widths of chains, levels and common trees; beyond them steps of
32 and then of 64, as a pass of so many nodes costs by the node. Text: powers of two, so that a text that
grows to n tokens takes log2(n / 256) shapes, and attention reads at most twice what is there. Rows: the same.
"""

from __future__ import annotations

import attrs

NODES = (1, 2, 4, 8, 16, 32, 64, 96, 128)
STEP = 64
"""Of nodes, beyond the largest of those."""

TEXT = 256
"""Tokens of the smallest text."""

COLUMNS = 128
"""Uncommitted columns for which there is always room."""

OLD = 32
"""Columns of the smallest region that recurrent layers read, apart from an empty one."""


@attrs.frozen
class Shape:
    """The sizes of one captured pass.

    Attributes:
        rows: of the batch.
        nodes: new ones of every row.
        text: slots before column 0, at most.
        columns: uncommitted columns, at most, the new nodes among them.
        old: uncommitted columns before the new nodes that recurrent layers read, at most.
    """

    rows: int
    nodes: int
    text: int
    columns: int
    old: int = 0

    @property
    def slots(self) -> int:
        """Slots of the buffers of keys and values, all of which the pass reads."""
        return self.text + self.columns


def nodes_bucket(nodes: int) -> int:
    """Nodes of the smallest shape that holds so many."""
    return next((bucket for bucket in NODES if bucket >= nodes), -(-nodes // STEP) * STEP)


def rows_bucket(rows: int) -> int:
    """Rows of the smallest shape that holds so many."""
    return 1 << max(rows - 1, 0).bit_length()


def text_bucket(tokens: int, *, longest: int | None = None) -> int:
    """Slots of the smallest shape that holds so many tokens; `longest` is where the context ends."""
    bucket = max(TEXT, 1 << max(tokens - 1, 0).bit_length())
    end = bucket if longest is None else -(-longest // STEP) * STEP
    return min(bucket, max(end, tokens))


def columns_bucket(columns: int) -> int:
    """Columns of the smallest shape that holds so many: as few of these as can be, since all else follows."""
    bucket = COLUMNS
    while bucket < columns:
        bucket *= 4
    return bucket


def old_bucket(columns: int) -> int:
    """Columns before the new nodes of the smallest shape that holds so many: none where there are none."""
    bucket = OLD if columns else 0
    while bucket < columns:
        bucket *= 4
    return bucket
