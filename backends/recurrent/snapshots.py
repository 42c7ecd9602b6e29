"""The usual method for recurrent states, for comparison: a snapshot for every node, and no replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from draftwood.backends.recurrent.layer_state import LayerState, Vectors
from draftwood.backends.recurrent.passes import Pass, Text
from draftwood.backends.recurrent.recurrence import behind_last, run_levels


class Snapshots(LayerState):
    """Any layer; the state after every uncommitted node is kept in addition to what the layer itself keeps.

    A commit takes the state after the path's last node. Memory is that of a state a node.
    """

    traceable = False

    def __init__(self, layer: LayerState) -> None:
        super().__init__()
        self._layer = layer

    def blank(self, new: Vectors) -> Tensor:
        """The layer's own."""
        return self._layer.begin_state(new)

    def attend(self, state: Tensor, old: Vectors, new: Vectors, now: Pass) -> tuple[Tensor, Vectors]:
        """The layer's own outputs; what nodes keep ends with their states, made level by level."""
        out, kept = self._layer.attend(state, old[:-1], new, now)
        _, behind = run_levels(self._after, state, old[-1] if old else None, kept, now)
        return out, (*kept, behind)

    def read(self, state: Tensor, new: Vectors, text: Text) -> tuple[Tensor, Tensor]:
        """The layer's own: no tree hangs below a token of a prompt but the last."""
        return self._layer.read(state, new, text)

    def _after(self, state: Tensor, *new: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the states after nodes that keep these vectors."""
        kept = torch.ones(len(state), 1, dtype=torch.bool, device=state.device)
        after = self._layer.replay(state, tuple(vector.unsqueeze(1) for vector in new), kept)
        return after, after

    @classmethod
    def replay_all(
        cls, layers: Sequence[Self], states: Sequence[Tensor], nodes: Sequence[Vectors], kept: Tensor
    ) -> list[Tensor]:
        """Returns the states after the last column of `kept`."""
        return [behind_last(kept, state, vectors[-1]) for state, vectors in zip(states, nodes, strict=True)]
