"""Cosines and sines of positions as inputs of a pass, in float32 whatever the arithmetic is.

In bfloat16 a position above 256 is rounded before its angle is computed. So the modules that rotate by
position are exchanged: they are asked for a table over positions, whose rows a pass is given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from draftwood.backends.nodes.region import Ints

FIRST = 1024
"""Positions of a first table, which doubles."""


@attrs.define(eq=False)
class Table:
    """Cosines and sines by position, of one module under one set of further arguments.

    Attributes:
        rotary: the module.
        like: a tensor of the dtype that it is called with.
        arguments: positional ones after the positions.
        options: those by name.
        width: numbers of a position.
    """

    rotary: torch.nn.Module
    like: Tensor
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    width: int
    _held: NDArray[np.float32] | None = None

    @property
    def described(self) -> tuple[Any, ...]:
        """Class and arguments of the module."""
        return type(self.rotary).__name__, self.arguments, sorted(self.options.items()), self.width

    def shape(self, rows: int, nodes: int) -> tuple[int, int, int, int]:
        """Sizes of a pass's inputs."""
        return 2, rows, nodes, self.width

    def at(self, positions: Ints, *, longest: int | None) -> NDArray[np.float32]:
        """Returns float32 `[2, rows, nodes, width]`: cosines and sines at `positions`, `[rows, nodes]`.

        Args:
            positions: below `longest`.
            longest: where the model's context ends, if it does.
        """
        found = np.empty(self.shape(*positions.shape), np.float32)
        self.write(positions, found, longest=longest)
        return found

    def write(self, positions: Ints, to: NDArray[np.float32], *, longest: int | None) -> None:
        """Write what `at` returns into `to`."""
        most = int(positions.max()) + 1
        if self._held is None or self._held.shape[1] < most:
            size = max(FIRST, 1 << (most - 1).bit_length())
            self._held = self._made(size if longest is None else max(min(size, longest), most))
        # All positions are in the table; to look for others numpy would copy what it has found.
        self._held.take(positions, 1, out=to, mode="clip")

    def _made(self, positions: int) -> NDArray[np.float32]:
        with torch.no_grad():
            pair = self.rotary(self.like, torch.arange(positions)[None], *self.arguments, **self.options)
        return torch.stack([one[0].float() for one in pair]).numpy()


class GivenRotary(torch.nn.Module):
    """Stands in for a module that gives cosines and sines; in a pass it hands out what `Rotations` holds."""

    def __init__(self, rotary: torch.nn.Module, owner: Rotations) -> None:
        super().__init__()
        self.rotary, self._owner = rotary, [owner]  # not a submodule

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("rotary"), name)

    def forward(self, like: Tensor, position_ids: Tensor, *arguments: Any, **options: Any) -> Any:
        """Returns cosines and sines `[rows, nodes, width]` each."""
        return self._owner[0].called(self.rotary, like, position_ids, arguments, options)


class Rotations:
    """The modules of one model that rotate by position, exchanged for given cosines and sines.

    Attributes:
        tables: one for every input that a pass takes.
    """

    def __init__(self, module: Any) -> None:
        """Exchange the rotations of `module`, which is changed."""
        self.tables: list[Table] = []
        self._keys: list[Any] = []
        self._noting: Tensor | None = None
        self._given: Sequence[Tensor] = ()
        found = [
            (name, part)
            for name, part in module.named_modules()
            if type(part).__name__.endswith("RotaryEmbedding")
        ]
        for name, part in found:
            module.set_submodule(name, GivenRotary(part, self))

    def note(self, positions: Tensor | None) -> None:
        """From now on note what the modules are called with at `positions`; None: no longer."""
        self._noting = positions

    def give(self, rotations: Sequence[Tensor]) -> None:
        """From now on hand these out, one `[2, rows, nodes, width]` for each of `tables`."""
        self._given = rotations

    def called(
        self,
        rotary: torch.nn.Module,
        like: Tensor,
        position_ids: Tensor,
        arguments: tuple[Any, ...],
        options: dict[str, Any],
    ) -> Any:
        """Returns what `rotary` gives, or what was given in its place."""
        key = id(rotary), arguments, tuple(sorted(options.items()))
        if self._noting is not None:
            out = rotary(like, position_ids, *arguments, **options)
            if key not in self._keys and self._tabulated(out, position_ids):
                self._keys.append(key)
                blank = torch.zeros(1, 1, like.shape[-1], dtype=like.dtype)
                self.tables.append(Table(rotary, blank, arguments, options, out[0].shape[-1]))
            return out
        if key not in self._keys:
            return rotary(like, position_ids, *arguments, **options)
        given = self._given[self._keys.index(key)].to(like.dtype)
        return given[0], given[1]

    def _tabulated(self, out: Any, position_ids: Tensor) -> bool:
        """Whether `out` is a table's rows at the positions of the pass."""
        at = self._noting
        if at is None or position_ids.shape != at.shape or not torch.equal(position_ids, at):
            return False
        pair = isinstance(out, tuple) and len(out) == 2 and all(isinstance(one, Tensor) for one in out)
        return pair and all(one.shape[:2] == at.shape and one.dim() == 3 for one in out)
