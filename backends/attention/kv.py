"""Preallocated KV rows: a transformers cache that writes every pass into slots of preallocated buffers.

A slot is an index along the sequence axis. All rows write a pass into the same slots, so that a write is
one slice copy whatever the rows' lengths; a shorter row has a gap that its attention mask hides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from draftwood.backends.nodes.region import Ints
from draftwood.kernels.kv_commit import dispatch as kv_commit
from draftwood.kernels.transfer import sent

SPARE = 128
"""Slots beyond those asked for, so that a text does not outgrow its prompt's buffers in its first round."""


@attrs.define(eq=False)
class ReadPlan:
    """The slots that a pass reads, where these are not all up to its last one.

    Attributes:
        slots: int64 `[rows, slots]`, of every row.
    """

    slots: Ints
    # By the shape and device of a layer's buffers: where these slots lie among all lines of them.
    _lines: dict[tuple[Any, ...], Tensor] = attrs.field(factory=dict, init=False)

    def copied(self, buffer: Tensor) -> Tensor:
        """Returns a copy of what is read of `[rows, kv_heads, slots, dim]`, which is one piece of memory."""
        rows, heads, slots, dim = buffer.shape
        key = heads, slots, buffer.device
        if (lines := self._lines.get(key)) is None:
            first = np.arange(0, rows * heads * slots, slots).reshape(rows, heads, 1)
            lines = sent((first + self.slots[:, None]).reshape(-1), buffer.device)
            self._lines[key] = lines
        return buffer.view(-1, dim).index_select(0, lines).view(rows, heads, -1, dim)


@attrs.define
class WritePlan:
    """Where the current pass writes: rows `[first, last)`, slots `[start, stop)`; and the buffers' size.

    Attributes:
        index: int64 `[nodes]`, the slots of all rows instead, for a captured pass; it reads all slots.
        reads: what it reads; None: all slots up to `stop`.
        gathered: whether all layers have their buffers in the arenas.
    """

    first: int = 0
    last: int = 0
    start: int = 0
    stop: int = 0
    rows: int = 0
    slots: int = 0
    index: Tensor | None = None
    reads: ReadPlan | None = None
    gathered: bool = False


@attrs.frozen
class BufferKind:
    """Heads, width, dtype and device of a layer's keys or values, once they have been seen."""

    heads: int
    dim: int
    dtype: torch.dtype
    device: torch.device

    @classmethod
    def of(cls, states: Tensor) -> BufferKind:
        """That of `[rows, heads, slots, dim]`."""
        return cls(states.shape[1], states.shape[3], states.dtype, states.device)


class RowLayer(CacheLayerMixin):
    """KV buffers of one layer, `[rows, kv_heads, slots, head_dim]`; head_dim may differ between the two.

    Attributes:
        kinds: of its keys and values; none before its first pass.
    """

    is_sliding = False

    def __init__(self, plan: WritePlan) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.plan = plan
        self.kinds: dict[str, BufferKind] = {}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate both buffers in the shape, dtype and device of the first states seen."""
        keys, values = (
            states.new_zeros(self.plan.rows, states.shape[1], self.plan.slots, states.shape[3])
            for states in (key_states, value_states)
        )
        self.keys, self.values = keys, values
        self.kinds = {"keys": BufferKind.of(keys), "values": BufferKind.of(values)}
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True
        self.plan.gathered = False

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the pass's states `[last - first, kv_heads, stop - start, head_dim]`; views up to `stop`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        plan, keys, values = self.plan, self.keys, self.values
        assert keys is not None
        assert values is not None
        if plan.index is not None:
            # Autocast may have made them narrower than the buffers.
            keys.index_copy_(2, plan.index, key_states.to(keys.dtype))
            values.index_copy_(2, plan.index, value_states.to(values.dtype))
            return keys, values
        if plan.last - plan.first != plan.rows:
            keys = keys.narrow(0, plan.first, plan.last - plan.first)
            values = values.narrow(0, plan.first, plan.last - plan.first)
        count = plan.stop - plan.start
        keys.narrow(2, plan.start, count).copy_(key_states)
        values.narrow(2, plan.start, count).copy_(value_states)
        if plan.reads is not None:
            return plan.reads.copied(keys), plan.reads.copied(values)
        return keys.narrow(2, 0, plan.stop), values.narrow(2, 0, plan.stop)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that attention sees, and the index of the first."""
        if self.plan.reads is not None:
            return self.plan.reads.slots.shape[1], 0
        # A captured pass holds whatever the text's length is.
        return (self.plan.start + query_length if self.plan.index is None else self.plan.slots), 0

    def get_seq_length(self) -> int:
        """Returns the slots before this pass; 0 for a captured pass, which runs for any text."""
        return self.plan.start if self.plan.index is None else 0

    def get_max_length(self) -> int:
        """No maximum: the buffers grow."""
        return -1


class RowCache(Cache):
    """The KV rows of a whole model.

    Buffers of one shape, dtype and device lie together in one arena `[buffers, rows, kv_heads, slots,
    head_dim]`, so that a commit costs a few operations, not a few for every layer.

    Attributes:
        settled: whether the model's shapes are known, so that room made now is made once.
        kept: whether buffers stay when all rows go, until others are needed: for whoever has bound them.
    """

    def __init__(self, *, standing: bool = False) -> None:
        """An empty cache.

        Args:
            standing: whether buffers are made anew in the memory that they have where it suffices, so that
                arrays of a shape that comes back keep their place. Captured passes need that.
        """
        self.plan, self.kept = WritePlan(), False
        self._standing = standing
        self._arenas: list[Tensor] = []
        self._memory: dict[BufferKind, Tensor] = {}
        self.settled = False
        # Whether rows were written since all were dropped.
        self._filled = False
        super().__init__(layer_class_to_replicate=partial(RowLayer, self.plan))  # type: ignore[arg-type]

    @property
    def arenas(self) -> Sequence[Tensor]:
        """The arenas `[buffers, rows, kv_heads, slots, head_dim]`, one for every kind of buffer.

        Their buffers are the keys and the values of every layer in turn, each in the arena of its kind.
        """
        return self._arenas

    def reserve(self, *, rows: int, slots: int) -> None:
        """Make room for `rows` and `slots`, with some to spare; on failure nothing has changed.

        Buffers that are made anew have exactly `rows`: what many short rows left must not multiply the
        slots of one long row.
        """
        plan = self.plan
        if rows > plan.rows or slots > plan.slots:
            self._build(rows=rows, slots=self._with_spare(slots))

    def settle(self, *, slots: int) -> None:
        """Gather layers that allocated separate buffers on their first pass into arenas of `slots`."""
        if not self.plan.gathered:
            self._build(rows=self.plan.rows, slots=self._with_spare(slots))
            self.plan.gathered, self.settled = True, len(self.layers) > 0

    def keep_as(self, dtype: torch.dtype) -> None:
        """Keep keys and values in `dtype` from now on, where a first pass has shown what layers keep.

        For who runs passes in it: they need not convert what they read. The model itself gets its keys and
        values back in `dtype` too, and may not take them.
        """
        for layer in self.layers:
            if isinstance(layer, RowLayer) and layer.keys is not None and layer.values is not None:
                layer.keys, layer.values = layer.keys.to(dtype), layer.values.to(dtype)
                layer.kinds = {"keys": BufferKind.of(layer.keys), "values": BufferKind.of(layer.values)}
                layer.dtype = dtype
        self.plan.gathered = False

    def lay_out(self, *, rows: int, slots: int) -> bool:
        """Make the buffers exactly so large.

        Returns:
            Whether they are others now.
        """
        changed = (rows, slots) != (self.plan.rows, self.plan.slots)
        if changed:
            self._build(rows=rows, slots=slots)
        elif self.kept and not self._filled:
            # A pass that reads all slots must not meet what is not finite there, of rows that are gone.
            for arena in self._arenas:
                arena.zero_()
        return changed

    def write(self, first: int, last: int, *, start: int, stop: int, reads: Ints | None = None) -> None:
        """Let the next pass write rows `[first, last)` into slots `[start, stop)`, and have room for it.

        It reads the slots `reads`, `[rows, slots]`; all up to `stop` where they are None.
        """
        plan = self.plan
        if last > plan.rows or stop > plan.slots:
            self.reserve(rows=last, slots=stop)
        self._filled = True
        plan.first, plan.last, plan.start, plan.stop = first, last, start, stop
        plan.reads = None if reads is None else ReadPlan(reads)

    @contextmanager
    def written_at(self, index: Tensor) -> Iterator[None]:
        """Inside it passes write into the slots `index` of all rows, and read all slots."""
        self.plan.index, self._filled = index, True
        try:
            yield
        finally:
            self.plan.index = None

    def drop(self) -> None:
        """Give back all memory that is not to be kept; the shapes of layers are remembered."""
        self._filled = False
        if self._standing or self.kept:
            return
        self._arenas = []
        self.plan.rows = self.plan.slots = 0
        for layer in self.layers:
            if isinstance(layer, RowLayer):
                layer.keys = layer.values = None

    def _with_spare(self, slots: int) -> int:
        have = self.plan.slots
        return max(slots + SPARE, have + have // 2) if slots > have else have

    def _build(self, *, rows: int, slots: int) -> None:
        groups: dict[BufferKind, list[tuple[RowLayer, str]]] = {}
        for layer in self.layers:
            if isinstance(layer, RowLayer):
                for name, kind in layer.kinds.items():
                    groups.setdefault(kind, []).append((layer, name))
        # All memory first: what does not fit must change nothing.
        built = []
        for kind, members in groups.items():
            shape = len(members), rows, kind.heads, slots, kind.dim
            old = [getattr(layer, name) if self._filled else None for layer, name in members]
            old = [None if held is None else held[:rows, :, :slots] for held in old]
            memory = self._memory.get(kind)
            if memory is not None and memory.numel() >= math.prod(shape):
                old = [None if held is None else held.clone() for held in old]
                arena = memory[: math.prod(shape)].view(shape)
            else:
                arena, memory = torch.zeros(*shape, dtype=kind.dtype, device=kind.device), None
            built.append((kind, members, old, arena, memory))
        self._arenas = []
        for kind, members, old, arena, memory in built:
            if memory is not None:
                arena.zero_()
            elif self._standing:
                self._memory[kind] = arena.view(-1)
            for (layer, name), new, held in zip(members, arena, old, strict=True):
                if held is not None:
                    new[: len(held), :, : held.shape[2]] = held
                if self._standing:
                    torch._dynamo.mark_static_address(new)
                setattr(layer, name, new)
            self._arenas.append(arena)
        self.plan.rows, self.plan.slots = rows, slots

    def move(self, rows: Ints, sources: Ints, targets: Ints) -> None:
        """Copy slot `sources[i]` of row `rows[i]` to slot `targets[i]`, reading all before writing any.

        Rows come in ascending order.
        """
        for device in {arena.device for arena in self._arenas}:
            arenas = [arena for arena in self._arenas if arena.device == device]
            kv_commit.move(arenas=arenas, rows=rows, sources=sources, targets=targets)

    def keep(self, rows: Sequence[int], *, slots: int) -> None:
        """Keep these rows, in ascending order, as the first ones; `slots` of each are in use."""
        first = next((new for new, old in enumerate(rows) if new != old), None)
        if first is None:
            return
        # Row by row, since all at once needs a second copy of them, and takes three to nine times as long.
        for arena in self._arenas:
            for place, row in enumerate(rows[first:], first):
                arena[:, place, :, :slots] = arena[:, row, :, :slots]
