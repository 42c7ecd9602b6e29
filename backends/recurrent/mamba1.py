"""The state of a Mamba-1 layer, and the mixers of the models that have one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import linear, silu, softplus

from draftwood.backends.recurrent.conv import ConvState
from draftwood.backends.recurrent.layer_state import LayerState, Vectors, grown
from draftwood.backends.recurrent.mixer import Mixer, precise
from draftwood.backends.recurrent.passes import Pass
from draftwood.backends.recurrent.states import States
from draftwood.kernels.mamba1_tree import dispatch as mamba1_tree


class Mamba1State(LayerState):
    """`x_t = exp(step_t A) x_(t-1) + v_t B_t'`, put out as `x_t C_t`, with A for each channel and state.

    `run` takes C and B `[rows, nodes, groups, n]`, and v (inputs times their step) and the steps, both
    `[rows, nodes, channels]`. Nodes keep B, v and the step; the state is `[rows, channels, n]`.
    """

    kept_as = "recurrent_states"

    def __init__(self, original: Any) -> None:
        """`original` has the logarithms of the rates as `A_log`, `[..., n]`."""
        super().__init__()
        self._original = original
        # A of the last pass, `[channels, n]`: between passes the weights may be elsewhere. A captured pass
        # leaves none.
        self._last_rates: Tensor | None = None

    @property
    def not_converted(self) -> str:
        """OpenVINO, without loops over a tree, took 1.9 to 2.3 times as long for 1 to 17 nodes as torch."""
        return "that torch runs faster"

    def blank(self, new: Vectors) -> Tensor:
        """Zeros."""
        _, keys, values, _ = new
        return values.new_zeros(len(values), values.shape[-1], keys.shape[-1])

    def adopted(self, state: Tensor) -> Tensor:
        """Returns a state `[rows, ..., n]` with its channels in one dimension."""
        return precise(state.reshape(len(state), -1, state.shape[-1]).clone())

    def attend(self, state: Tensor, old: Vectors, new: Vectors, now: Pass) -> tuple[Tensor, Vectors]:
        """Level by level; `new` is C, B, the inputs times their step, and the step."""
        queries, *kept = new
        keys, values, steps = grown(old, tuple(kept))
        rates = self._rates()
        self._last_rates = None if torch.compiler.is_compiling() else rates
        out = mamba1_tree.attend(
            queries=queries,
            keys=keys,
            values=values,
            steps=steps,
            rates=rates,
            state=state,
            paths=now.paths,
        )
        return out, tuple(kept)

    def _rates(self) -> Tensor:
        return -precise(self._original.A_log).exp().flatten(0, -2)

    @classmethod
    def replay_all(
        cls, layers: Sequence[Self], states: Sequence[Tensor], nodes: Sequence[Vectors], kept: Tensor
    ) -> list[Tensor]:
        """One decayed sum over the path."""
        keys, values, steps = zip(*nodes, strict=True)
        return mamba1_tree.replay_all(
            keys=keys,
            values=values,
            steps=steps,
            rates=[layer._rates() if layer._last_rates is None else layer._last_rates for layer in layers],
            state=states,
            kept=kept,
        )


class Mamba1Mixer(Mixer):
    """MambaMixer and those that norm the step, B and C besides: FalconMamba, Jamba."""

    def __init__(self, original: Any, states: States) -> None:
        super().__init__(original, states)
        self._conv = self.keeps(ConvState(original.conv1d))
        self._scan = self.keeps(Mamba1State(original))

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The mixer's outputs for the nodes of the pass, `[rows, nodes, hidden]`."""
        original = self.original
        inputs, gate = original.in_proj(self.unmasked(hidden_states)).chunk(2, dim=-1)
        inputs = self.unmasked(original.act(self.run(self._conv, inputs)))
        size = original.ssm_state_size
        step, keys, queries = original.x_proj(inputs).split([original.time_step_rank, size, size], dim=-1)
        if hasattr(original, "dt_layernorm"):
            step, keys = original.dt_layernorm(step), original.b_layernorm(keys)
            queries = original.c_layernorm(queries)
        step = softplus(precise(linear(step, original.dt_proj.weight)) + original.dt_proj.bias)
        inputs = precise(inputs)
        out = self.run(
            self._scan, precise(queries).unsqueeze(2), precise(keys).unsqueeze(2), inputs * step, step
        )
        out = (out + inputs * original.D) * silu(precise(gate))
        return original.out_proj(out.to(hidden_states.dtype))  # type: ignore[no-any-return]


class ZambaMixer(Mixer):
    """ZambaMambaMixer: Mamba-1 in heads, each with its own step, B and C."""

    def __init__(self, original: Any, states: States) -> None:
        super().__init__(original, states)
        self._conv = self.keeps(ConvState(original.conv1d))
        self._scan = self.keeps(Mamba1State(original))

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The mixer's outputs for the nodes of the pass, `[rows, nodes, hidden]`."""
        original, (heads, size) = self.original, (self.original.n_mamba_heads, self.original.ssm_state_size)
        # Inputs and gates lie channel by channel.
        inputs, gate = original.in_proj(self.unmasked(hidden_states)).unflatten(-1, (-1, 2)).unbind(-1)
        inputs = self.unmasked(original.act(self.run(self._conv, inputs))).unflatten(-1, (heads, -1))
        mixed = torch.einsum("rnhc,hoc->rnho", inputs, original.x_proj_weight)
        step, keys, queries = mixed.split([original.time_step_rank, size, size], dim=-1)
        step = precise(torch.einsum("rnht,hct->rnhc", step, original.dt_proj_weight))
        step = softplus(step + original.dt_proj_bias).flatten(2)
        inputs = precise(inputs).flatten(2)
        out = self.run(self._scan, precise(queries), precise(keys), inputs * step, step)
        out = (out + inputs * original.D.flatten()) * silu(precise(gate))
        return original.out_proj(out.to(hidden_states.dtype))  # type: ignore[no-any-return]
