"""Preallocated KV rows: a transformers cache that writes every pass into slots of its own buffers.

A slot is an index along the sequence axis. All rows write a pass into the same slots, so that a write is
one slice copy whatever the rows' lengths; a shorter row has a gap that its attention mask hides.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from draftwood.kernels.kv_commit import dispatch as kv_commit

SPARE = 128
"""Slots beyond those asked for, so that a text does not outgrow its prompt's buffers in its first round."""


@attrs.define
class WritePlan:
    """Where the current pass writes: rows `[first, last)`, slots `[start, stop)`; and the buffers' size."""

    first: int = 0
    last: int = 0
    start: int = 0
    stop: int = 0
    rows: int = 0
    slots: int = 0


class RowLayer(CacheLayerMixin):
    """KV buffers of one layer, `[rows, kv_heads, slots, head_dim]`; head_dim may differ between the two."""

    is_sliding = False

    def __init__(self, plan: WritePlan) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.plan = plan

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate both buffers in the shape, dtype and device of the first states seen."""
        keys, values = (
            states.new_zeros(self.plan.rows, states.shape[1], self.plan.slots, states.shape[3])
            for states in (key_states, value_states)
        )
        self.keys, self.values = keys, values
        self.dtype, self.device = keys.dtype, keys.device
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Write the pass's states `[last - first, kv_heads, stop - start, head_dim]`; views up to `stop`."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        plan, keys, values = self.plan, self.keys, self.values
        assert keys is not None
        assert values is not None
        if plan.last - plan.first != plan.rows:
            keys = keys.narrow(0, plan.first, plan.last - plan.first)
            values = values.narrow(0, plan.first, plan.last - plan.first)
        count = plan.stop - plan.start
        keys.narrow(2, plan.start, count).copy_(key_states)
        values.narrow(2, plan.start, count).copy_(value_states)
        return keys.narrow(2, 0, plan.stop), values.narrow(2, 0, plan.stop)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Keys that attention sees, and the index of the first."""
        return self.plan.start + query_length, 0

    def get_seq_length(self) -> int:
        """Slots before this pass."""
        return self.plan.start

    def get_max_length(self) -> int:
        """No maximum: the buffers grow."""
        return -1


class RowCache(Cache):
    """The KV rows of a whole model.

    Buffers of one shape, dtype and device lie together in one arena `[buffers, rows, kv_heads, slots,
    head_dim]`, so that a commit costs a few operations, not a few for every layer.
    """

    def __init__(self) -> None:
        self.plan = WritePlan()
        self._arenas: list[Tensor] = []
        self._settled = 0
        super().__init__(layer_class_to_replicate=partial(RowLayer, self.plan))  # type: ignore[arg-type]

    @property
    def settled(self) -> bool:
        """Whether the model's shapes are known, so that room made now is made once."""
        return len(self._arenas) > 0

    def reserve(self, *, rows: int, slots: int) -> None:
        """Make room for `rows` and `slots`, with some to spare; on failure nothing has changed.

        Buffers that are made anew have exactly `rows`: what many short rows left must not multiply the
        slots of one long row.
        """
        plan = self.plan
        if rows > plan.rows or slots > plan.slots:
            spare = max(slots + SPARE, plan.slots + plan.slots // 2) if slots > plan.slots else plan.slots
            self._build(rows=rows, slots=spare)

    def settle(self) -> None:
        """Gather layers that allocated buffers of their own, on their first pass, into the arenas."""
        if len(self.layers) != self._settled:
            self._build(rows=self.plan.rows, slots=self.plan.slots)

    def _build(self, *, rows: int, slots: int) -> None:
        layers = [layer for layer in self.layers if isinstance(layer, RowLayer) and layer.is_initialized]
        groups: dict[tuple[Any, ...], list[tuple[RowLayer, str]]] = {}
        for layer in layers:
            for name in ("keys", "values"):
                old = getattr(layer, name)
                groups.setdefault((old.shape[1], old.shape[3], old.dtype, old.device), []).append(
                    (layer, name)
                )
        arenas, views = [], []
        for (heads, dim, dtype, device), members in groups.items():
            arena = torch.zeros(len(members), rows, heads, slots, dim, dtype=dtype, device=device)
            for new, (layer, name) in zip(arena, members, strict=True):
                old = getattr(layer, name)
                count = min(rows, len(old))
                new[:count, :, : old.shape[2]] = old[:count]
                views.append((layer, name, new))
            arenas.append(arena)
        for layer, name, new in views:
            setattr(layer, name, new)
        self._arenas, self._settled = arenas, len(self.layers)
        self.plan.rows, self.plan.slots = rows, slots

    def move(self, rows: Sequence[int], sources: Sequence[int], targets: Sequence[int]) -> None:
        """Copy slot `sources[i]` of row `rows[i]` to slot `targets[i]`, reading all before writing any.

        Rows come in ascending order.
        """
        for device in {arena.device for arena in self._arenas}:
            arenas = [arena for arena in self._arenas if arena.device == device]
            kv_commit.move(arenas=arenas, rows=rows, sources=sources, targets=targets)

    def keep(self, rows: Sequence[int], *, slots: int) -> None:
        """Keep these rows, in ascending order, as the first ones; `slots` of each are in use."""
        for arena in self._arenas:
            for new, old in enumerate(rows):
                if new != old:
                    arena[:, new, :, :slots] = arena[:, old, :, :slots]
