"""`RowInputs`: inputs of a forward that belong to a row, whatever its next tokens are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.base.errors import InvalidInput

_MASK = "attention_mask"
"""Name of the mask over the source, of which 1 hides nothing."""


@attrs.frozen(eq=False)
class Source:
    """The source of every row, as passes of an encoder-decoder read it.

    Attributes:
        encoded: `[rows, columns, width]`, the output of the encoder.
        layers: keys and values of every layer that attends to it, each `[rows, kv_heads, columns, head_dim]`.
    """

    encoded: Tensor
    layers: Sequence[tuple[Tensor, Tensor]]

    def keep(self, rows: Sequence[int]) -> Source:
        """Returns the sources of these rows, in this order."""
        chosen = list(rows)
        if chosen == list(range(len(self.encoded))):
            return self
        return Source(self.encoded[chosen], [(k[chosen], v[chosen]) for k, v in self.layers])

    def joined(self, more: Source) -> Source:
        """Returns the sources of these rows, followed by `more`.

        Raises:
            InvalidInput: sources of other lengths.
        """
        have, new = self.encoded.shape[1], more.encoded.shape[1]
        if have != new:
            raise InvalidInput(
                f"Some rows have sources of {have} columns and others of {new}, which one pass cannot read; "
                "write them in separate calls."
            )
        layers = [
            (torch.cat([keys, other_keys]), torch.cat([values, other_values]))
            for (keys, values), (other_keys, other_values) in zip(self.layers, more.layers, strict=True)
        ]
        return Source(torch.cat([self.encoded, more.encoded]), layers)


@attrs.frozen(eq=False)
class RowInputs:
    """Where the positions of every row go on, and what all of its passes are given besides tokens.

    Attributes:
        shift: int64 `[rows]` or `[axes, rows]`: the position of a row's next token, less the number of its
            committed tokens. Several axes are time, height and width.
        constants: by name, `[rows, 1]` for one value for each token, or `[rows, ...]` as it is.
        hidden: for every row int64, in ascending order, the columns of its prompt that a mask hides and no
            slot holds, counted from its first visible one; empty where no row has any. Windows count them.
        source: of an encoder-decoder; None for other models.
    """

    shift: NDArray[np.int64]
    constants: Mapping[str, Tensor] = attrs.field(factory=dict)
    hidden: tuple[NDArray[np.int64], ...] = ()
    source: Source | None = None

    @classmethod
    def plain(cls, rows: int) -> RowInputs:
        """Returns the inputs of rows that only hold tokens."""
        return cls(np.zeros(rows, np.int64))

    @property
    def is_plain(self) -> bool:
        """Whether they say no more than the tokens do."""
        alone = not self.constants and not self.hidden and self.source is None
        return alone and self.shift.ndim == 1 and not self.shift.any()

    @property
    def runs_captured(self) -> bool:
        """Whether a pass over them has the same kinds of inputs as one over plain rows."""
        return not self.constants and self.source is None and self.shift.ndim == 1

    def keep(self, rows: Sequence[int]) -> RowInputs | None:
        """Returns the inputs of these rows, in this order; None where they say no more than the tokens."""
        kept = RowInputs(
            self.shift[..., list(rows)],
            {name: value[list(rows)] for name, value in self.constants.items()},
            _if_any([self.hidden[row] for row in rows] if self.hidden else ()),
            self.source and self.source.keep(rows),
        )
        return None if kept.is_plain else kept

    def joined(self, more: RowInputs) -> RowInputs:
        """Returns the inputs of these rows, followed by `more`.

        Rows without a mask over their sources, of one length with those that have one, get a mask that hides
        nothing.

        Raises:
            InvalidInput: only some of the rows have other constants, which one pass cannot give.
        """
        have, new = self._masked_as(more), more._masked_as(self)
        if have.keys() != new.keys():
            names = ", ".join(sorted(have.keys() | new.keys()))
            raise InvalidInput(
                f"Some rows are read with {names} and others without, which one pass cannot do; write them "
                "in separate calls."
            )
        axes = max(self.shift.shape[:-1], more.shift.shape[:-1], key=len)
        shifts = [np.broadcast_to(one.shift, (*axes, one.shift.shape[-1])) for one in (self, more)]
        constants = {name: torch.cat([value, new[name]]) for name, value in have.items()}
        hidden = [
            columns
            for one in (self, more)
            for columns in one.hidden or [np.zeros(0, np.int64)] * one.shift.shape[-1]
        ]
        source = self.source and more.source and self.source.joined(more.source)
        return RowInputs(np.concatenate(shifts, -1), constants, _if_any(hidden), source)

    def _masked_as(self, other: RowInputs) -> Mapping[str, Tensor]:
        """Returns the constants of these rows, with a mask over their sources where only `other` has one."""
        mask = other.constants.get(_MASK)
        if mask is None or _MASK in self.constants:
            return self.constants
        return {**self.constants, _MASK: mask.new_ones(self.shift.shape[-1], *mask.shape[1:])}

    def positions(self, depths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions `[*axes, rows, nodes]` of nodes that have so many tokens before them, `[rows, nodes]`."""
        return depths + self.shift[..., None]

    def columns(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Columns `[rows, nodes]` of uncommitted nodes at these slots, hidden columns included."""
        if not self.hidden:
            return slots
        hidden = np.array([len(columns) for columns in self.hidden], np.int64)
        found: NDArray[np.int64] = slots + hidden[:, None]
        return found

    def slots(self, columns: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the first slot at or after each of these columns, `[rows, nodes]`."""
        if not self.hidden:
            return columns
        before = [np.searchsorted(hidden, row) for hidden, row in zip(self.hidden, columns, strict=True)]
        found: NDArray[np.int64] = columns - np.stack(before)
        return found

    def options(self, nodes: int) -> dict[str, Any]:
        """The constants as keyword arguments of a pass over so many nodes of every row."""
        return {
            name: value.expand(-1, nodes) if value.dim() == 2 and value.shape[1] == 1 else value
            for name, value in self.constants.items()
        }


def _if_any(hidden: Sequence[NDArray[np.int64]]) -> tuple[NDArray[np.int64], ...]:
    return tuple(hidden) if any(len(columns) for columns in hidden) else ()


def joined_inputs(have: RowInputs | None, rows: int, more: RowInputs | None, new: int) -> RowInputs | None:
    """The inputs of `rows` rows and then of `new` ones; None where all only hold tokens.

    Raises:
        InvalidInput: as `RowInputs.joined`.
    """
    if have is None and more is None:
        return None
    if not rows:
        return more
    joined = (have or RowInputs.plain(rows)).joined(more or RowInputs.plain(new))
    return None if joined.is_plain else joined
