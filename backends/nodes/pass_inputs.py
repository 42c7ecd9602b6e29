"""All that a pass reads apart from the state of its rows, as it is on the host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.nodes.buckets import Shape
from draftwood.backends.nodes.region import Bits, Ints, Region, Staged, packed
from draftwood.backends.nodes.row_inputs import RowInputs
from draftwood.backends.structure.masks import Reach
from draftwood.base.errors import InvalidInput

Inputs = dict[str, Tensor]
"""The inputs of a pass on its device, by name."""

Held = dict[str, NDArray[Any]]
"""The same on the host."""


class MaskArrays(Protocol):
    """The form in which a backend tells a device what nodes see."""

    def arrays(self, inputs: PassInputs, room: Shape | None) -> Held:
        """Returns the arrays of which the device makes the masks of `inputs`, padded to `room` if given."""


@attrs.frozen(eq=False)
class PassInputs:
    """New nodes of every row, their positions, and what they see of the text and of each other.

    A tree, a chain and a chunk of a prompt are described in the same way. A chunk is a chain whose text is
    what its rows have read before it. Rows that see the same, such as rows of a chunk, may share one line
    of `positions`, `bits`, `first` and `lengths`.

    Attributes:
        tokens: int64 `[rows, nodes]` in the order of the call, on the host or on a device.
        staged: the nodes in the uncommitted region.
        positions: `[rows, nodes]`, in column order, as all that follows; `[axes, rows, nodes]` for rows whose
            prompt has positions of several axes.
        kinds: names of the kinds of attention layers.
        bits: by kind, uint32 `[rows, nodes, words]`: the columns that a node sees.
        first: by kind, `[rows, nodes]`: the first committed slot that a node sees; None where it is 0.
        lengths: `[rows]`, committed slots of every row; between them and `base` is a gap.
        base: the slot of column 0.
        ragged: whether any row is shorter than `base`.
        shape: of the pass, exactly.
        above: rows of the buffers that precede these.
        prompts: bool `[rows, nodes]`, the nodes that are tokens of a prompt; None if no layer is recurrent.
        texts: tokens of the text of every row, the rest being padding, where the rows are about to join;
            else None.
        wanted: columns whose logits are needed, in ascending order; None for all.
        keep: whether the nodes stay after the pass.
        given: what the rows' passes are given besides tokens; None where they only hold tokens.
        reads: `[rows, slots]`, the committed slots that the pass reads; None for all up to `base`. Where it
            is given, `lengths` count these, and `shape.text` is how many there are.
    """

    tokens: Tensor
    staged: Staged
    positions: Ints
    kinds: tuple[str, ...]
    bits: tuple[Bits, ...]
    first: tuple[Ints | None, ...]
    lengths: Ints
    base: int
    ragged: bool
    shape: Shape
    above: int = 0
    prompts: NDArray[np.bool_] | None = None
    texts: Sequence[int] | None = None
    wanted: Sequence[int] | None = None
    keep: bool = True
    given: RowInputs | None = None
    reads: Ints | None = None

    @classmethod
    def of(
        cls,
        tokens: Tensor,
        staged: Staged,
        *,
        kinds: dict[str, Reach],
        before: Region,
        lengths: Ints,
        base: int,
        ragged: bool,
        max_length: int | None,
        above: int = 0,
        prompts: NDArray[np.bool_] | None = None,
        texts: Sequence[int] | None = None,
        wanted: Sequence[int] | None = None,
        keep: bool = True,
        given: RowInputs | None = None,
    ) -> PassInputs:
        """The inputs of a pass over `staged` nodes, by their ancestry and the reach of every kind of layer.

        Args:
            tokens: an attribute.
            staged: an attribute.
            kinds: the reach of every kind of attention layer, by name.
            before: the region that the nodes are about to join.
            lengths: an attribute.
            base: an attribute.
            ragged: an attribute.
            max_length: positions of the model's context, if it has an end.
            above: an attribute.
            prompts: an attribute.
            texts: an attribute.
            wanted: an attribute.
            keep: an attribute.
            given: an attribute.

        Raises:
            InvalidInput: a node beyond `max_length`.
        """
        rows, nodes = tokens.shape
        stop = staged.start + nodes
        longest = base + stop
        positions = staged.depths + lengths[:, None]
        if max_length is not None and longest > max_length:
            positions = _within(positions, staged.counts, max_length)
        bits: list[Bits] = []
        first: list[Ints | None] = []
        # What a window hides follows from the number of columns in between, not from positions.
        columns = positions if given is None else given.columns(positions)
        reached = longest if given is None else max(longest, int(columns.max(initial=0)) + 1)
        for reach in kinds.values():
            if (reach.window or reach.chunk) and reach.limits(reached):
                old, begins = before.depths + lengths[:, None], reach.first(columns)
                if given is not None:
                    old, begins = given.columns(old), given.slots(begins)
                bits.append(staged.bits & packed(reach.sees(columns, np.concatenate([old, columns], 1))))
                first.append(begins)
            else:
                bits.append(staged.bits)
                first.append(None)
        return cls(
            tokens,
            staged,
            positions if given is None else given.positions(positions),
            tuple(kinds),
            tuple(bits),
            tuple(first),
            lengths,
            base,
            ragged,
            Shape(rows, nodes, base, stop, staged.start),
            above,
            prompts,
            texts,
            wanted,
            keep,
            given,
        )

    def in_window(self, *, sinks: int, window: int) -> PassInputs:
        """Returns the inputs of a pass that reads the first `sinks` and last `window` slots of a text.

        It does so for every row; texts that are not longer are read whole.
        """
        width = sinks + window
        if self.base <= width:
            return self
        begins = np.maximum(self.lengths - window, sinks)
        reads = np.tile(np.arange(width), (len(begins), 1))
        reads[:, sinks:] += begins[:, None] - sinks
        lengths = np.minimum(self.lengths, width)
        return attrs.evolve(
            self,
            lengths=lengths,
            ragged=bool((lengths < width).any()),
            shape=attrs.evolve(self.shape, text=width),
            reads=reads,
        )

    @property
    def start(self) -> int:
        """The slot of the first new node."""
        return self.base + self.shape.old

    @property
    def stop(self) -> int:
        """The slot after the last new node."""
        return self.base + self.shape.columns

    @property
    def slots_read(self) -> Ints | None:
        """Slots that the pass reads, of uncommitted nodes too, `[rows, slots]`; None: all up to `stop`."""
        if self.reads is None:
            return None
        nodes = np.tile(np.arange(self.base, self.stop), (len(self.reads), 1))
        return np.concatenate([self.reads, nodes], 1)

    @property
    def more_than_tokens(self) -> bool:
        """Whether the pass has inputs that passes over tokens do not have, or positions of several axes."""
        return self.given is not None and not self.given.runs_captured

    @property
    def on_host(self) -> bool:
        """Whether the tokens are."""
        return self.tokens.is_cpu

    def arrays(self, masks: MaskArrays, room: Shape | None = None, *, there: bool = False) -> Held:
        """All that the device reads, to be sent in one copy.

        Args:
            masks: the form in which it is told what nodes see.
            there: whether the device is that of the tokens, which are left out if they need no other order.
            room: a shape that the arrays are padded to, for a captured pass; it also reads where the nodes
                are written. None for a pass of exactly this shape.
        """
        held = masks.arrays(self, room)
        on_host, reordered = self.tokens.is_cpu, self.staged.columns is not None
        tokens: Ints | None = None
        if on_host and (reordered or not there):
            tokens = self.tokens.numpy()
            if reordered:
                tokens = tokens.reshape(-1)[self.staged.orders()["from call"]].reshape(tokens.shape)
        if room is None:
            held["positions"] = self.positions
            if tokens is not None:
                held["tokens"] = tokens
            if self.prompts is not None:
                held["seen"], held["prompts"] = self.staged.visible, self.prompts
            if reordered or not on_host:
                held |= self.orders()
            return held
        size = room.rows, room.nodes
        held["positions"] = padded(self.positions, size)
        held["tokens"] = np.zeros(size, np.int64) if tokens is None else padded(tokens, size)
        held["slots"] = np.arange(self.start, self.start + room.nodes)
        held["at"] = np.array([self.base], np.int32)
        if self.prompts is not None:
            start, old, (rows, nodes) = self.staged.start, room.old, self.tokens.shape
            held["columns"] = np.arange(start, start + room.nodes)
            held["prompts"] = padded(self.prompts, size)
            # Padding sees itself, and no text begins with it.
            seen = held["seen"] = np.zeros((*size, old + room.nodes), np.bool_)
            seen[:, :, old:] = np.eye(room.nodes, dtype=np.bool_)
            visible = self.staged.visible
            seen[:rows, :nodes, :start] = visible[..., :start]
            seen[:rows, :nodes, old : old + nodes] = visible[..., start:]
        return held

    def orders(self) -> Held:
        """Returns the arrays that `place_tokens` and `in_call` need on the device: mostly none."""
        held: Held = dict(self.staged.orders())
        nodes = self.tokens.shape[1]
        if self.on_host:
            held.pop("from call", None)
        elif min(self.staged.counts, default=nodes) < nodes:
            held["real"] = np.arange(nodes) < np.array(self.staged.counts)[:, None]
        return held

    def device_tokens(self, tensors: Inputs, device: torch.device) -> Tensor:
        """Tokens that are on a device, on `device` in column order, padding 0; `tensors` holds `orders`."""
        tokens = self.tokens.to(device, non_blocking=True)
        if "real" in tensors:
            tokens = torch.where(tensors["real"], tokens, 0)
        if "from call" in tensors:
            tokens = tokens.flatten().index_select(0, tensors["from call"]).view(tokens.shape)
        return tokens

    def in_call(self, logits: Tensor, tensors: Inputs) -> Tensor:
        """`logits` `[rows, nodes, vocab]` of the nodes in column order, in the order of the call."""
        if "to call" not in tensors:
            return logits
        order = tensors["to call"].to(logits.device)
        return logits.flatten(0, 1).index_select(0, order).view(logits.shape)


def padded(values: NDArray[Any], size: tuple[int, ...]) -> NDArray[Any]:
    """An array of `size` that begins with `values`, along every axis, and holds 0 elsewhere."""
    if values.shape == size:
        return values
    place = np.zeros(size, values.dtype)
    place[tuple(map(slice, values.shape))] = values
    return place


def _within(positions: Ints, counts: Sequence[int], max_length: int) -> Ints:
    """Returns `positions`, with padding moved into the context; raises `InvalidInput` for nodes beyond it."""
    for row, position in enumerate(positions.max(1)):
        if counts[row] and position >= max_length:
            raise InvalidInput(
                f"A node of row {row} has position {position}, but the model's context holds "
                f"{max_length} tokens; stop the row or grow a shallower tree."
            )
    return np.minimum(positions, max_length - 1)
