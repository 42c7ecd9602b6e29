"""Any recurrence, from one step of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor

from draftwood.backends.recurrent.layer_state import LayerState, Vectors
from draftwood.backends.recurrent.passes import Pass
from draftwood.base.errors import InvalidInput


class Recurrence(LayerState):
    """Abstract: a state that a subclass gives by one `step` and its beginning (`blank`).

    A pass goes down the new nodes level by level, all rows and nodes of a level in one step, and every node
    keeps the state after it; a commit takes the one after the accepted path. So any recurrence is supported,
    at a step a token and a state a node. Where a closed form is known, a `LayerState` saves both.

    A state is a tensor, or a tuple of tensors of one dtype. `blank` returns it, each `[rows, ...]`, and
    `step` takes and returns it.
    """

    traceable = False

    def __init__(self) -> None:
        super().__init__()
        # Of the tensors of a state, without rows; None where it is a tensor.
        self._shapes: list[torch.Size] | None = None

    @abstractmethod
    def step(self, state: Any, *new: Tensor) -> tuple[Any, Tensor]:
        """The next states and the outputs of n tokens that know nothing of each other.

        Args:
            state: before them, `[n, ...]`, otherwise as `blank` gives it.
            new: what the mixer hands to `run`, without rows and nodes: each `[n, ...]`.
        """

    def begin_state(self, new: Vectors) -> Tensor:
        """Returns `blank` as one tensor.

        Raises:
            InvalidInput: its tensors have several dtypes.
        """
        parts: Any = self.blank(new)
        state = parts if isinstance(parts, Tensor) else self._packed(parts)
        self._shapes = None if parts is state else [part.shape[1:] for part in parts]
        self._start = state[:1]
        return state

    def _packed(self, parts: Sequence[Tensor]) -> Tensor:
        """The tensors of a state as one `[n, numbers]`."""
        dtypes = [str(part.dtype) for part in parts]
        if len(set(dtypes)) > 1:
            raise InvalidInput(
                f"The state of {type(self).__name__} has tensors in {', '.join(dtypes)}; give them one dtype."
            )
        return torch.cat([part.reshape(len(part), -1) for part in parts], 1)

    def _one_step(self, state: Tensor, *new: Tensor) -> tuple[Tensor, Tensor]:
        """Runs `step` on a state that is one tensor."""
        if self._shapes is None:
            return self.step(state, *new)
        parts = state.split([shape.numel() for shape in self._shapes], 1)
        shaped = [part.reshape(len(part), *shape) for part, shape in zip(parts, self._shapes, strict=True)]
        after, out = self.step(tuple(shaped), *new)
        return self._packed(after), out

    def attend(self, state: Tensor, old: Vectors, new: Vectors, now: Pass) -> tuple[Tensor, Vectors]:
        """Returns the outputs, and the states after the new nodes."""
        out, behind = run_levels(self._one_step, state, old[0] if old else None, new, now)
        return out, (behind,)

    @classmethod
    def replay_all(
        cls, layers: Sequence[Self], states: Sequence[Tensor], nodes: Sequence[Vectors], kept: Tensor
    ) -> list[Tensor]:
        """Returns the states after the last column of `kept`."""
        return [behind_last(kept, state, behind) for state, (behind,) in zip(states, nodes, strict=True)]


def run_levels(
    step: Callable[..., tuple[Tensor, Tensor]], state: Tensor, old: Tensor | None, new: Vectors, now: Pass
) -> tuple[Tensor, Tensor]:
    """Returns the outputs of the new nodes and the states after them, both `[rows, nodes, ...]`.

    Args:
        step: as `Recurrence.step`.
        state: committed, `[rows, ...]`.
        old: the states after older columns `[rows, columns, ...]`; None where there are none.
        new: what `step` reads of the new nodes, each `[rows, nodes, ...]`.
        now: who sees whom.
    """
    rows, nodes = new[0].shape[:2]
    row = torch.arange(rows, device=state.device).unsqueeze(1)
    above = state.unsqueeze(1) if old is None else torch.cat([state.unsqueeze(1), old], 1)
    behind = state.new_zeros(rows, nodes + 1, *state.shape[1:])  # the last for nodes that are padding
    out, states = behind, state
    for depth, (level, parents) in enumerate(now.levels):
        column = level.clamp(max=nodes - 1)
        states = states[row, parents] if depth else above[row, now.above[row, column]]
        after, outputs = step(states.flatten(0, 1), *(vector[row, column].flatten(0, 1) for vector in new))
        if not depth:
            out = outputs.new_zeros(rows, nodes + 1, *outputs.shape[1:])
        states = after.unflatten(0, level.shape)
        behind[row, level], out[row, level] = states.to(behind), outputs.unflatten(0, level.shape)
    return out[:, :nodes], behind[:, :nodes]


def behind_last(kept: Tensor, state: Tensor, behind: Tensor) -> Tensor:
    """Returns the state after the last column of `kept`, bool `[rows, columns]`, or the committed one."""
    columns = torch.arange(1, kept.shape[1] + 1, device=kept.device)
    last = torch.cat([columns.new_zeros(len(kept), 1), torch.where(kept, columns, 0)], 1).amax(1)
    row = torch.arange(len(kept), device=kept.device)
    return torch.cat([state.unsqueeze(1), behind], 1)[row, last]
