"""The usual way with recurrent states, for comparison: a snapshot for every node, and no replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from draftwood.backends.recurrent.states import LayerState, Pass, Vectors, grown


class Snapshots(LayerState):
    """Any layer, with the state behind every uncommitted node kept beside what the layer itself keeps.

    A commit takes the state behind the path's last node. Memory is that of a state a node.
    """

    def __init__(self, layer: LayerState) -> None:
        super().__init__()
        self._layer = layer

    def blank(self, new: Vectors) -> Tensor:
        """The layer's own."""
        return self._layer.blank(new)

    def attend(self, state: Tensor, old: Vectors, new: Vectors, now: Pass) -> tuple[Tensor, Vectors]:
        """The layer's own outputs; what nodes keep ends with their states, made level by level."""
        out, kept = self._layer.attend(state, old[:-1], new, now)
        nodes = grown(old[:-1], kept)
        rows, columns = nodes[0].shape[:2]
        row = torch.arange(rows, device=state.device).unsqueeze(1)
        behind = state.new_zeros(rows, columns + 1, *state.shape[1:])
        held = state.unsqueeze(1)
        for taken, parents in now.paths.levels:
            place = taken.clamp(max=columns - 1)
            one = tuple(vector[row, place].flatten(0, 1).unsqueeze(1) for vector in nodes)
            step = torch.ones(taken.numel(), 1, dtype=torch.bool, device=state.device)
            after = self._layer.replay(held[row, parents].flatten(0, 1), one, step)
            held = after.unflatten(0, taken.shape)
            behind[row, taken] = held
        return out, (*kept, behind[:, columns - kept[0].shape[1] : columns])

    @classmethod
    def replay_all(
        cls, layers: Sequence[Self], states: Sequence[Tensor], nodes: Sequence[Vectors], kept: Tensor
    ) -> list[Tensor]:
        """The states behind the last column of `kept`."""
        places = torch.arange(1, kept.shape[1] + 1, device=kept.device)
        last = torch.where(kept, places, 0).amax(1)
        row = torch.arange(len(kept), device=kept.device)
        return [
            torch.cat([state.unsqueeze(1), held[-1]], 1)[row, last]
            for state, held in zip(states, nodes, strict=True)
        ]
