"""The state of a Mamba-2 layer, and the mixers of the models that have one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from draftwood.backends.recurrent.conv import ConvState
from draftwood.backends.recurrent.layer_state import LayerState, Vectors, grown
from draftwood.backends.recurrent.mixer import Mixer, precise
from draftwood.backends.recurrent.passes import Pass, Text
from draftwood.backends.recurrent.states import States
from draftwood.kernels.mamba2_tree import dispatch as mamba2_tree
from draftwood.kernels.mamba2_tree import prompt

OPEN = (0.0, float("inf"))
"""Limits that clamp no step."""


class Mamba2State(LayerState):
    """`x_t = exp(a_t) x_(t-1) + v_t B_t'`, put out as `x_t C_t`, with one decay a head.

    `run` takes C and B `[rows, nodes, groups, n]`, v (inputs times their step) `[rows, nodes, heads, p]` and
    the log decay a `[rows, nodes, heads]`. Nodes keep B, v and a; the state is `[rows, heads, p, n]`.
    """

    kept_as = "recurrent_states"

    def blank(self, new: Vectors) -> Tensor:
        """Zeros."""
        _, keys, values, _ = new
        rows, _, heads, dim = values.shape
        return values.new_zeros(rows, heads, dim, keys.shape[-1])

    def adopted(self, state: Tensor) -> Tensor:
        """Returns the same, in single precision at least."""
        return precise(state.clone())

    def attend(self, state: Tensor, old: Vectors, new: Vectors, now: Pass) -> tuple[Tensor, Vectors]:
        """Attention with decay; `new` is C, B, the inputs times their step, and the log decay."""
        queries, *kept = new
        keys, values, decay = grown(old, tuple(kept))
        out = mamba2_tree.attend(
            queries=queries, keys=keys, values=values, decay=decay, state=state, visible=now.visible
        )
        return out, tuple(kept)

    def read(self, state: Tensor, new: Vectors, text: Text) -> tuple[Tensor, Tensor]:
        """All pieces of the text together."""
        queries, keys, values, decay = new
        if not text.whole:
            kept = text.kept.unsqueeze(2)
            values, decay = torch.where(kept.unsqueeze(3), values, 0.0), torch.where(kept, decay, 0.0)
        return prompt.read(queries=queries, keys=keys, values=values, decay=decay, state=state)

    @classmethod
    def replay_all(
        cls, layers: Sequence[Self], states: Sequence[Tensor], nodes: Sequence[Vectors], kept: Tensor
    ) -> list[Tensor]:
        """One decayed sum over the path."""
        keys, values, decay = zip(*nodes, strict=True)
        return mamba2_tree.replay_all(keys=keys, values=values, decay=decay, state=states, kept=kept)


class Mamba2Mixer(Mixer):
    """Mamba2Mixer and those made after it: Bamba, FalconH1, GraniteMoeHybrid, Zamba2, NemotronH.

    The step is only clamped in prompts, as in transformers, which then decodes token by token.
    """

    def __init__(self, original: Any, states: States) -> None:
        super().__init__(original, states)
        self._conv = self.keeps(ConvState(original.conv1d))
        self._scan = self.keeps(Mamba2State())
        limits = getattr(original, "time_step_limit", None)
        self._limits = None if limits is None or tuple(limits) == OPEN else limits

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The mixer's outputs for the nodes of the pass, `[rows, nodes, hidden]`."""
        original, (rows, nodes, _) = self.original, hidden_states.shape
        gate, mixed, dt = self._project(self.unmasked(hidden_states)).split(
            [original.intermediate_size, original.conv_dim, original.num_heads], dim=-1
        )
        mixed = precise(self.unmasked(original.act(self.run(self._conv, mixed))))
        size = original.n_groups * original.ssm_state_size
        inputs, keys, queries = mixed.split([original.intermediate_size, size, size], dim=-1)
        inputs = inputs.view(rows, nodes, original.num_heads, original.head_dim)
        step = self._clamped(softplus(precise(dt) + original.dt_bias))
        out = self.run(
            self._scan,
            queries.reshape(rows, nodes, original.n_groups, -1),
            keys.reshape(rows, nodes, original.n_groups, -1),
            inputs * step.unsqueeze(-1),
            step * -precise(original.A_log).exp(),
        )
        out = (out + inputs * original.D.unsqueeze(-1)).reshape(rows, nodes, -1)
        return original.out_proj(self._gated(out, gate).to(hidden_states.dtype))  # type: ignore[no-any-return]

    def _clamped(self, step: Tensor) -> Tensor:
        if self._limits is None:
            return step
        clamped, prompts = step.clamp(*self._limits), self.states.prompts(step.device)
        return clamped if prompts is None else torch.where(prompts.unsqueeze(2), clamped, step)

    def _project(self, hidden_states: Tensor) -> Any:
        original = self.original
        if not hasattr(original, "ssm_in_multiplier"):
            return original.in_proj(hidden_states)
        # Only FalconH1.
        return original.in_proj(hidden_states * original.ssm_in_multiplier) * original.mup_vector

    def _gated(self, out: Tensor, gate: Tensor) -> Any:
        # FalconH1 may go without a norm.
        return (
            out * silu(gate)
            if isinstance(self.original.norm, torch.nn.Identity)
            else self.original.norm(out, gate)
        )
