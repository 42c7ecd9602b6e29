"""The base of all mixers of recurrent layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftwood.backends.recurrent.layer_state import LayerState
from draftwood.backends.recurrent.states import States


class Mixer(torch.nn.Module):
    """Abstract: replaces one of a model's layers, with that layer's parameters and our states.

    A subclass says in its constructor what the layer `keeps`, and its `forward` takes and returns what the
    layer's does, for the nodes of a tree in place of a text. It treats every node by itself, except in
    calls of `run`, in which nodes see their ancestors. `draftwood.mixers` is its group of entry points.

    Attributes:
        original: the model's own layer, which is not called as a whole.
        states: of all recurrent layers of the model.
    """

    def __init__(self, original: Any, states: States) -> None:
        super().__init__()
        self.original = original
        self.states = states

    def keeps(self, layer: LayerState) -> LayerState:
        """Keep `layer` for every row; returns what to `run`."""
        return self.states.add(layer)

    def run(self, layer: LayerState, *new: Tensor) -> Tensor:
        """Returns the outputs of `layer` for the pass's nodes, from `new`; all are `[rows, nodes, ...]`."""
        return self.states.run(layer, *new)

    def unmasked(self, values: Tensor) -> Tensor:
        """Returns `values` `[rows, nodes, ...]` with zeros for tokens that the mask of a prompt hides.

        Such a token still takes its step, as in transformers' layers, which read zeros for it. A mixer calls
        this where its original does.
        """
        return self.states.unmasked(values)


def precise(tensor: Tensor) -> Tensor:
    """In single precision at least: states are kept so, whatever the model's dtype."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
