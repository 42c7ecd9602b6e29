"""Standing memory of what a recurrent layer keeps: captured passes find their tensors where they were."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Place:
    """Memory of one tensor `[rows, ...]`, made anew only to grow, so that a shape comes back where it lay.

    Attributes:
        tensor: as it is laid out now.
    """

    def __init__(self, like: Tensor) -> None:
        """Nothing yet.

        Args:
            like: of the dtype and device.
        """
        self.tensor = like.new_empty(0)
        self._memory = like.new_empty(0)
        self._next: tuple[Tensor, Tensor | None, tuple[int, ...]]

    def prepare(self, shape: Sequence[int], held: Tensor | None) -> None:
        """Allocate all that `take` needs for `shape`, which is to begin with `held`; nothing changes yet."""
        size, memory = math.prod(shape), self._memory
        if memory.numel() < size:
            memory = memory.new_empty(size)
        elif held is not None:
            held = held.clone()
        self._next = memory, held, tuple(shape)

    def take(self) -> None:
        """Lay the tensor out as it was prepared, 0 where nothing was held."""
        self._memory, held, shape = self._next
        del self._next
        self.tensor = self._memory[: math.prod(shape)].view(shape)
        self.tensor.zero_()
        if held is not None:
            self.tensor[tuple(map(slice, held.shape))] = held
        torch._dynamo.mark_static_address(self.tensor)


class Arena:
    """The states that one layer keeps of all rows, in tensors that stay in place.

    Attributes:
        state: committed, `[rows, ...]`.
        vectors: of uncommitted columns, each `[rows, columns, ...]`.
    """

    def __init__(self, state: Tensor, vectors: Sequence[Tensor]) -> None:
        """Without rows.

        Args:
            state: like the committed one, `[rows, ...]`.
            vectors: of nodes, `[rows, nodes, ...]`.
        """
        self._shapes = [state.shape[1:], *(vector.shape[2:] for vector in vectors)]
        self._places = [Place(state), *map(Place, vectors)]
        self.state, self.vectors = state.new_empty(0, *state.shape[1:]), tuple[Tensor, ...]()

    def prepare(
        self, *, rows: int, columns: int, state: Tensor | None, vectors: Sequence[Tensor] = ()
    ) -> None:
        """Allocate for `lay_out`, which is to keep these; vectors that it has itself are kept anyway."""
        first, *others = self._places
        first.prepare((rows, *self._shapes[0]), None if state is None else state[:rows])
        held: Sequence[Tensor | None] = vectors or self.vectors or [None] * len(others)
        for place, shape, vector in zip(others, self._shapes[1:], held, strict=True):
            place.prepare((rows, columns, *shape), None if vector is None else vector[:rows, :columns])

    def lay_out(self) -> None:
        """Take what was prepared."""
        for place in self._places:
            place.take()
        self.state, *vectors = (place.tensor for place in self._places)
        self.vectors = tuple(vectors)

    def keep(self, rows: Sequence[int]) -> None:
        """Let these rows, in ascending order, be the first ones."""
        for place in self._places:
            for new, old in enumerate(rows):
                if new != old:
                    place.tensor[new] = place.tensor[old]
