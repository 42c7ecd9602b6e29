"""The state of a real-gated linear recurrent unit, and the mixer of RecurrentGemma."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import softplus

from draftwood.backends.recurrent.conv import ConvState
from draftwood.backends.recurrent.layer_state import LayerState, Vectors
from draftwood.backends.recurrent.mixer import Mixer, precise
from draftwood.backends.recurrent.passes import Pass
from draftwood.backends.recurrent.states import States
from draftwood.kernels.lru_tree import dispatch as lru_tree


class LRUState(LayerState):
    """`x_t = exp(a_t) x_(t-1) + v_t` in each channel: `run` takes v and a, both `[rows, nodes, channels]`.

    Nodes keep their outputs, which are states themselves; the state is `[rows, channels]`.
    """

    def blank(self, new: Vectors) -> Tensor:
        """Zeros."""
        return new[0].new_zeros(len(new[0]), new[0].shape[-1])

    def attend(self, state: Tensor, old: Vectors, new: Vectors, now: Pass) -> tuple[Tensor, Vectors]:
        """From parent to child; `new` is the gated inputs and their log decay."""
        values, decay = new
        outputs = old[0] if old else values[:, :0]
        out = lru_tree.attend(values=values, outputs=outputs, decay=decay, state=state, paths=now.paths)
        return out, (out,)

    @classmethod
    def replay_all(
        cls, layers: Sequence[Self], states: Sequence[Tensor], nodes: Sequence[Vectors], kept: Tensor
    ) -> list[Tensor]:
        """The path's last output."""
        return lru_tree.replay_all(outputs=[states for (states,) in nodes], state=states, kept=kept)


class LRUMixer(Mixer):
    """RecurrentGemmaRecurrentBlock."""

    def __init__(self, original: Any, states: States) -> None:
        super().__init__(original, states)
        self._conv = self.keeps(ConvState(original.conv_1d))
        self._scan = self.keeps(LRUState())

    def forward(
        self, hidden_states: Tensor, position_ids: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """The block's outputs for the nodes of the pass, `[rows, nodes, hidden]`."""
        original, unit = self.original, self.original.rg_lru
        branch = original.act_fn(original.linear_y(hidden_states))
        inputs = self.run(self._conv, original.linear_x(hidden_states))
        gate = _gate(inputs, unit.input_gate_weight, unit.input_gate_bias)
        decay = precise(_gate(inputs, unit.recurrent_gate_weight, unit.recurrent_gate_bias))
        decay = -8.0 * decay * softplus(precise(unit.recurrent_param))
        # The first token of a text forgets what was before it, and is taken unscaled.
        first = (position_ids == 0).unsqueeze(-1)
        scale = torch.where(first, 1.0, (1 - (2 * decay).exp()).clamp(min=0).sqrt())
        values = precise(inputs * gate) * scale
        out = self.run(self._scan, values, decay.masked_fill(first, -torch.inf))
        return original.linear_out(out.to(hidden_states.dtype) * branch), None


def _gate(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Sigmoid of a block-diagonal product: `[rows, nodes, channels]` by `[blocks, width, width]`."""
    blocks = inputs.unflatten(-1, bias.shape)
    return (torch.einsum("rnbi,bij->rnbj", blocks, weight) + bias).sigmoid().flatten(2)
