"""Requests of a compiled pass: one for every shape, its tensors bound once.

A request whose shape changes between calls pays for that in every call. So shapes are few, and what is
smaller is padded with nodes that only see themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import is_
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.attention.kv import RowCache, RowLayer
from draftwood.backends.nodes.pass_inputs import PassInputs
from draftwood.backends.nodes.region import Ints, unpacked
from draftwood.backends.openvino.bound_request import BoundRequest
from draftwood.backends.openvino.conversion import Converted, as_engine
from draftwood.backends.openvino.function import UNSEEN
from draftwood.backends.recurrent.states import States

NODES = (*range(1, 10), 12, 16, 17, 24, 32, 33, 48, 64, 65)
"""Nodes of the small shapes; trees of 8, 16, 32 and 64 nodes have a root besides."""

STEP = 64
"""Nodes between larger shapes."""

SLOTS = 128
"""Slots between shapes: buffers grow by as many."""

SHAPES = 64
"""Requests that are kept."""

TOO_LARGE = 4
"""Memory of an earlier prompt is used for one that needs at least this part of it: a quarter."""


def nodes_of(nodes: int) -> int:
    """Nodes of the smallest shape that holds so many."""
    return next((size for size in NODES if size >= nodes), -(-nodes // STEP) * STEP)


def slots_of(slots: int) -> int:
    """Slots of the smallest shape that holds so many."""
    return max(-(-slots // SLOTS), 1) * SLOTS


@attrs.frozen
class RequestShape:
    """The sizes of a pass.

    Attributes:
        rows: of the batch.
        nodes: of every row, padding included.
        slots: of the buffers, all of which are read; 0 for a prompt, which has nothing before it.
        wanted: nodes whose logits are given.
        old: columns before the nodes, of which recurrent layers read what they keep; at least 1.
    """

    rows: int
    nodes: int
    slots: int
    wanted: int
    old: int = 0


class Bound:
    """The rows `[above, above + rows)` of all buffers of a cache, as they are until these move.

    Attributes:
        buffers: OpenVINO's tensors of the buffers.
        none: the same without a slot.
        arenas: for every arena, `[buffers, rows, kv_heads, slots, head_dim]` on the host.
        slots: of the buffers.
    """

    def __init__(self, cache: RowCache, *, above: int, rows: int) -> None:
        """Bind the buffers of `cache` as they are now."""
        held = [
            buffer[above : above + rows]
            for layer in cache.layers
            if isinstance(layer, RowLayer) and layer.kinds
            for buffer in (layer.keys, layer.values)
            if buffer is not None
        ]
        self._kept = held, list(cache.arenas)  # an engine's tensor does not keep its memory
        self.buffers = [as_engine(buffer) for buffer in held]
        self.none = [as_engine(torch.empty_like(buffer[:, :, :0])) for buffer in held]
        self.arenas = [as_numpy(arena)[:, above : above + rows] for arena in cache.arenas]
        self.slots = cache.plan.slots
        self._key = above, rows, [arena.data_ptr() for arena in cache.arenas], cache.plan.slots

    def is_of(self, cache: RowCache, *, above: int, rows: int) -> bool:
        """Whether these are the buffers of those rows still."""
        key = above, rows, [arena.data_ptr() for arena in cache.arenas], cache.plan.slots
        return key == self._key and all(map(is_, cache.arenas, self._kept[1]))


class Request:
    """One request for passes of a shape."""

    def __init__(
        self,
        one: Converted,
        shape: RequestShape,
        *,
        vocab: int,
        width: int,
        any_size: bool = False,
        former: Request | None = None,
    ) -> None:
        """A request of `one`, whose logits are of `vocab` and whose features of `width` numbers a node.

        It takes over the request of a `former` one, which is not used again and was made for `any_size`: to
        make one takes a while.
        """
        self.shape, self._one = shape, one
        self._vocab, self._width = vocab, width
        self._request: BoundRequest = (
            BoundRequest(one.compiled, any_size=any_size) if former is None else former._request
        )
        rows, nodes, slots = shape.rows, shape.nodes, shape.slots
        function = one.function
        self.tokens = np.zeros((rows, nodes), np.int64)
        self.positions = np.zeros((rows, nodes), np.int64)
        self.wanted = np.arange(shape.wanted)
        self.masks = [np.full((rows, 1, nodes, slots + nodes), UNSEEN, np.float32) for _ in function.kinds]
        tables = function.rotations.tables
        self.rotations = [np.zeros(table.shape(rows, nodes), np.float32) for table in tables]
        self.visible = np.zeros((rows, nodes, shape.old + nodes), np.bool_)
        self.prompts = np.zeros((rows, nodes), np.bool_)
        inputs = [self.tokens, self.positions, self.wanted, *self.masks, *self.rotations]
        self._past = len(inputs)
        self._states = self._past + len(function.past.buffers) + 2
        self._none = [kind.zeros(rows, shape.old) for kind in function.recurrent.vectors]
        places = dict(enumerate(inputs))
        if function.recurrent.layers:
            places |= {self._states - 2: self.visible, self._states - 1: self.prompts}
        for place, array in places.items():
            self._request.read(place, as_engine(torch.from_numpy(array)))
        self._bound: Bound | None = None
        self._nodes = -1  # as many as the padding of the last pass left
        self.rooms, self.added = list[Tensor](), list[NDArray[Any]]()
        self._first = 2 if function.reads_features else 1
        for place, kind in enumerate(function.past.arenas):
            sizes = function.past.added(kind, rows=rows, nodes=nodes)
            room = _room(math.prod(sizes), kind.dtype, None if former is None else former.rooms[place])
            self.rooms.append(room)
            tensor = room[: math.prod(sizes)].view(sizes)
            self._request.write(self._first + place, as_engine(tensor))
            self.added.append(function.past.as_arena(kind, as_numpy(tensor)))

    def fill(self, inputs: PassInputs, *, longest: int | None) -> None:
        """Take over tokens, positions and what nodes see."""
        nodes, slots = inputs.shape.nodes, self.shape.slots
        self.tokens[:, :nodes] = inputs.tokens.numpy()
        self.positions[:, :nodes] = inputs.positions
        if nodes != self._nodes:
            self._nodes = nodes
            self.tokens[:, nodes:] = self.positions[:, nodes:] = 0
            self.visible[...] = self.prompts[...] = False
            self.visible[:, :, self.shape.old :] = np.eye(self.shape.nodes, dtype=np.bool_)
            for mask in self.masks:
                mask[:, :, nodes:] = UNSEEN
                own = np.arange(nodes, self.shape.nodes)
                mask[:, :, own, slots + own] = 0.0
        if inputs.prompts is not None:
            # Where there are no older columns, the first one is seen by nobody.
            start = self.shape.old - inputs.shape.old
            self.visible[:, :nodes, :start] = False
            self.visible[:, :nodes, start : self.shape.old + nodes] = inputs.staged.visible
            self.prompts[:, :nodes] = inputs.prompts
        function = self._one.function
        for kind, mask in zip(function.kinds, self.masks, strict=True):
            see(mask[:, 0, :nodes], inputs, kind, slots=slots)
        for table, held in zip(function.rotations.tables, self.rotations, strict=True):
            table.write(self.positions, held, longest=longest)

    def run(
        self, bound: Bound, wanted: Sequence[int] | None = None, *, states: States | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Run the pass over these buffers: logits `[rows, wanted, vocab]`, and features, if they are read.

        Args:
            bound: buffers with the rows and slots of the shape.
            wanted: nodes whose logits are given; None: all.
            states: of recurrent layers, which take over what the nodes keep; None: none are recurrent.
        """
        request, shape, dtype = self._request, self.shape, self._one.dtype
        if self._bound is not bound:
            for place, buffer in enumerate(bound.buffers if shape.slots else bound.none, self._past):
                request.read(place, buffer)
            self._bound = bound
        if wanted is not None:
            self.wanted[:] = wanted
        # New memory in each call, since the caller may keep the outputs.
        logits = torch.empty(shape.rows, shape.wanted, self._vocab, dtype=dtype)
        request.write(0, as_engine(logits))
        features = None
        if self._one.function.reads_features:
            features = torch.empty(shape.rows, shape.nodes, self._width, dtype=dtype)
            request.write(1, as_engine(features))
        if states is None:
            request.run()
        else:
            self._run_recurrent(states)
        return logits, features

    def _run_recurrent(self, states: States) -> None:
        """Run the pass over `states`, whose layers then have what its nodes keep."""
        request, shape, recurrent = self._request, self.shape, self._one.function.recurrent
        old = [vector for layer in states.layers for vector in layer.nodes] or self._none
        # The list keeps alive what OpenVINO reads.
        read = [tensor.contiguous() for tensor in (*states.committed, *old)]
        for place, tensor in enumerate(read, self._states):
            request.read(place, as_engine(tensor))
        stacks = recurrent.room(rows=shape.rows, nodes=shape.nodes)
        for place, tensor in enumerate(stacks, self._first + len(self.added)):
            request.write(place, as_engine(tensor))
        request.run()
        for layer, kept in zip(states.layers, recurrent.unstacked(stacks), strict=True):
            layer.stage(tuple(one[:, : self._nodes] for one in kept))

    def keep(self, bound: Bound, *, start: int, stop: int) -> None:
        """Write the keys and values of the nodes into slots `[start, stop)`."""
        for arena, added in zip(bound.arenas, self.added, strict=True):
            arena[:, :, :, start:stop] = added[:, :, :, : stop - start]


def _room(size: int, dtype: torch.dtype, former: Tensor | None) -> Tensor:
    """Memory for so many numbers: a `former` piece, if it is large enough and not far too large.

    The system clears new memory, which for a long prompt takes a twentieth of the pass.
    """
    if former is not None and size <= former.numel() <= TOO_LARGE * size:
        return former
    return torch.empty(size, dtype=dtype)


def see(mask: NDArray[np.float32], inputs: PassInputs, kind: str, *, slots: int, padding: int = 0) -> None:
    """Write what nodes see, in layers of `kind`, as numbers that are added to scores.

    Args:
        mask: `[rows, padding + nodes, slots + new]`, changed in place.
        inputs: of the pass.
        kind: of attention layers.
        slots: of the buffers; what follows them are the nodes of the pass.
        padding: nodes before the pass's nodes; they only see themselves.
    """
    number = inputs.kinds.index(kind)
    bits, first = inputs.bits[number], inputs.first[number]
    base, old = inputs.base, inputs.shape.old
    whole = bits is inputs.staged.bits
    seen = inputs.staged.visible if whole else unpacked(bits, inputs.shape.columns)
    nodes = seen.shape[1]
    real = mask[:, padding:]
    see_text(real[..., :base], inputs, first)
    columns = np.where(seen, np.float32(0), np.float32(UNSEEN))
    real[..., base : base + old] = columns[..., :old]
    real[..., base + old :] = UNSEEN
    start = slots + padding
    real[..., start : start + nodes] = columns[..., old:]
    if padding:
        mask[:, :padding] = UNSEEN
        own = np.arange(padding)
        mask[:, own, slots + own] = 0.0


def see_text(mask: NDArray[np.float32], inputs: PassInputs, first: Ints | None) -> None:
    """Write which slots of the text nodes see, as `see` does.

    Args:
        mask: `[rows, nodes, slots]`, changed in place.
        inputs: of the pass.
        first: the first slot that a node sees, `[rows, nodes]`; None: all.
    """
    if inputs.ragged or first is not None:
        text = np.arange(mask.shape[2])
        visible = text < inputs.lengths[:, None, None]
        if first is not None:
            visible = visible & (text >= first[:, :, None])
        mask[...] = np.where(visible, np.float32(0), np.float32(UNSEEN))
    else:
        mask[..., : inputs.base] = 0.0
        mask[..., inputs.base :] = UNSEEN


def as_numpy(tensor: Tensor) -> NDArray[Any]:
    """The memory of `tensor` on the host; of a type that numpy lacks, its bits."""
    return (tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor).numpy()
