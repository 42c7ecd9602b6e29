"""What all mixers of recurrent layers share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from draftwood.backends.recurrent.states import LayerState, States


class Mixer(torch.nn.Module):
    """Abstract: stands in a model for the mixer `given`, with its parameters and with states of our own.

    Attributes:
        given: transformers' mixer, which is not called as a whole.
    """

    def __init__(self, given: Any, states: States) -> None:
        super().__init__()
        self.given = given
        self._states = states

    def _keeps(self, layer: LayerState) -> LayerState:
        return self._states.add(layer)


def precise(tensor: Tensor) -> Tensor:
    """In single precision at least: states are kept so, whatever the model's dtype."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
