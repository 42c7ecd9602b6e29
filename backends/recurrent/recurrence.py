"""Any recurrence, from one step of it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Self

import torch
from torch import Tensor

from draftwood.backends.recurrent.states import LayerState, Pass, Vectors


class Recurrence(LayerState):
    """Abstract: a state of which one `step` is known, and how it begins (`blank`).

    A pass goes down the new nodes level by level, all rows and nodes of a level in one step, and every node
    keeps the state behind it; a commit takes the one behind the accepted path. So any recurrence is served,
    at a step a token and a state a node. Where a closed form is known, a `LayerState` saves both.
    """

    @abstractmethod
    def step(self, state: Tensor, *new: Tensor) -> tuple[Tensor, Tensor]:
        """The next states and the outputs of n tokens that know nothing of each other.

        Args:
            state: before them, `[n, ...]`, otherwise as `blank` gives it.
            new: what the mixer hands to `run`, without rows and nodes: each `[n, ...]`.
        """

    def attend(self, state: Tensor, old: Vectors, new: Vectors, now: Pass) -> tuple[Tensor, Vectors]:
        """Outputs, and the states behind the new nodes."""
        out, behind = walked(self.step, state, old[0] if old else None, new, now)
        return out, (behind,)

    @classmethod
    def replay_all(
        cls, layers: Sequence[Self], states: Sequence[Tensor], nodes: Sequence[Vectors], kept: Tensor
    ) -> list[Tensor]:
        """The states behind the last column of `kept`."""
        return [behind_last(kept, state, held[0]) for state, held in zip(states, nodes, strict=True)]


def walked(
    step: Callable[..., tuple[Tensor, Tensor]], state: Tensor, old: Tensor | None, new: Vectors, now: Pass
) -> tuple[Tensor, Tensor]:
    """The outputs of the new nodes and the states behind them, both `[rows, nodes, ...]`.

    Args:
        step: as `Recurrence.step`.
        state: committed, `[rows, ...]`.
        old: the states behind older columns `[rows, columns, ...]`; None where there are none.
        new: what is known of the new nodes, each `[rows, nodes, ...]`.
        now: who sees whom.
    """
    rows, nodes = new[0].shape[:2]
    row = torch.arange(rows, device=state.device).unsqueeze(1)
    above = state.unsqueeze(1) if old is None else torch.cat([state.unsqueeze(1), old], 1)
    behind = state.new_zeros(rows, nodes + 1, *state.shape[1:])  # the last for places that are not filled
    out, held = behind, state
    for level, (taken, parents) in enumerate(now.levels):
        column = taken.clamp(max=nodes - 1)
        held = held[row, parents] if level else above[row, now.above[row, column]]
        after, found = step(held.flatten(0, 1), *(vector[row, column].flatten(0, 1) for vector in new))
        if not level:
            out = found.new_zeros(rows, nodes + 1, *found.shape[1:])
        held = after.unflatten(0, taken.shape)
        behind[row, taken], out[row, taken] = held.to(behind), found.unflatten(0, taken.shape)
    return out[:, :nodes], behind[:, :nodes]


def behind_last(kept: Tensor, state: Tensor, behind: Tensor) -> Tensor:
    """The state behind the last column of `kept`, bool `[rows, columns]`, or the committed one."""
    places = torch.arange(1, kept.shape[1] + 1, device=kept.device)
    last = torch.cat([places.new_zeros(len(kept), 1), torch.where(kept, places, 0)], 1).amax(1)
    row = torch.arange(len(kept), device=kept.device)
    return torch.cat([state.unsqueeze(1), behind], 1)[row, last]
