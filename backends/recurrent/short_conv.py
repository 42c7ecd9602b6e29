"""The mixer of layers that are a gated short convolution and nothing else."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from draftwood.backends.recurrent.conv import ConvState
from draftwood.backends.recurrent.mixer import Mixer
from draftwood.backends.recurrent.states import States


class ShortConvMixer(Mixer):
    """Lfm2ShortConv and that of its mixture of experts."""

    def __init__(self, original: Any, states: States) -> None:
        super().__init__(original, states)
        self._conv = self.keeps(ConvState(original.conv))

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The mixer's outputs for the nodes of the pass, `[rows, nodes, hidden]`."""
        before, after, inputs = self.original.in_proj(self.unmasked(hidden_states)).chunk(3, dim=-1)
        return self.original.out_proj(after * self.run(self._conv, before * inputs))  # type: ignore[no-any-return]
