"""The state of a causal convolution: its last inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from draftwood.backends.recurrent.layer_state import LayerState, Vectors, grown
from draftwood.backends.recurrent.passes import Pass, Text
from draftwood.kernels.tree_conv import dispatch as tree_conv
from draftwood.kernels.tree_conv import prompt


class ConvState(LayerState):
    """A causal convolution of each channel: `run` takes inputs `[rows, nodes, channels]`.

    Nodes keep their inputs; the state is the last ones, `[rows, width - 1, channels]`.
    """

    kept_as = "conv_states"

    def __init__(self, conv: torch.nn.Conv1d) -> None:
        super().__init__()
        self._conv = conv

    def blank(self, new: Vectors) -> Tensor:
        """No inputs yet."""
        rows, _, channels = new[0].shape
        return new[0].new_zeros(rows, self._conv.kernel_size[0] - 1, channels)

    def adopted(self, state: Tensor) -> Tensor:
        """Returns the last inputs of `[rows, channels, width]`."""
        return state[..., state.shape[-1] - self._conv.kernel_size[0] + 1 :].transpose(1, 2).contiguous()

    def attend(self, state: Tensor, old: Vectors, new: Vectors, now: Pass) -> tuple[Tensor, Vectors]:
        """Outputs before any activation."""
        weight = self._conv.weight.squeeze(1)
        (inputs,) = grown(old, new)
        window = now.window(weight.shape[1])
        out = tree_conv.attend(inputs=inputs, state=state, weight=weight, bias=self._conv.bias, window=window)
        return out, new

    def read(self, state: Tensor, new: Vectors, text: Text) -> tuple[Tensor, Tensor]:
        """The whole text at once."""
        (inputs,) = new
        weight = self._conv.weight.squeeze(1)
        out = prompt.attend(inputs=inputs, state=state, weight=weight, bias=self._conv.bias)
        return out, prompt.replay(inputs=inputs, state=state, counts=text.counts)

    @classmethod
    def replay_all(
        cls, layers: Sequence[Self], states: Sequence[Tensor], nodes: Sequence[Vectors], kept: Tensor
    ) -> list[Tensor]:
        """The last inputs of the path."""
        return tree_conv.replay_all(inputs=[inputs for (inputs,) in nodes], state=states, kept=kept)
