"""The state of a gated delta layer, and the mixers of the models that have one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import softplus
from transformers.activations import ACT2FN

from draftwood.backends.recurrent.conv import ConvState
from draftwood.backends.recurrent.layer_state import LayerState, Vectors, grown
from draftwood.backends.recurrent.mixer import Mixer, precise
from draftwood.backends.recurrent.passes import Pass
from draftwood.backends.recurrent.states import States
from draftwood.kernels.gated_delta_tree import dispatch as gated_delta_tree


class GatedDeltaState(LayerState):
    """`x_t = exp(a_t) x_(t-1) + d_t k_t'`, `d_t = b_t (v_t - exp(a_t) x_(t-1) k_t)`, put out as `x_t q_t`.

    `run` takes q and k `[rows, nodes, groups, n]`, v `[rows, nodes, heads, p]`, and the log decay a and b,
    both `[rows, nodes, heads]`. Nodes keep k, d and a; the state is `[rows, heads, p, n]`.
    """

    kept_as = "recurrent_states"

    def blank(self, new: Vectors) -> Tensor:
        """Zeros."""
        _, keys, values, _, _ = new
        rows, _, heads, dim = values.shape
        return values.new_zeros(rows, heads, dim, keys.shape[-1])

    def adopted(self, state: Tensor) -> Tensor:
        """Returns `[rows, heads, n, p]` transposed."""
        return precise(state.transpose(2, 3).contiguous())

    def attend(self, state: Tensor, old: Vectors, new: Vectors, now: Pass) -> tuple[Tensor, Vectors]:
        """Solve for the deltas; `new` is queries, keys, values, the log decay, and beta."""
        queries, key, values, decay, rates = new
        if not old:
            old = (key[:, :0], values[:, :0], decay[:, :0])
        keys, decays = grown((old[0], old[2]), (key, decay))
        out, deltas = gated_delta_tree.attend(
            queries=queries,
            keys=keys,
            values=values,
            deltas=old[1],
            rates=rates,
            decay=decays,
            state=state,
            visible=now.visible,
        )
        return out, (key, deltas, decay)

    @classmethod
    def replay_all(
        cls, layers: Sequence[Self], states: Sequence[Tensor], nodes: Sequence[Vectors], kept: Tensor
    ) -> list[Tensor]:
        """One decayed sum over the path."""
        keys, deltas, decay = zip(*nodes, strict=True)
        return gated_delta_tree.replay_all(keys=keys, values=deltas, decay=decay, state=states, kept=kept)


class GatedDeltaMixer(Mixer, ABC):
    """Abstract: Qwen3-Next's mixer and those made after it, which differ in what leads to the convolution."""

    def __init__(self, original: Any, states: States) -> None:
        super().__init__(original, states)
        self._act = ACT2FN[original.activation]
        self._conv = self.keeps(ConvState(original.conv1d))
        self._scan = self.keeps(GatedDeltaState())

    @abstractmethod
    def _projected(self, hidden: Tensor) -> Vectors:
        """Queries, keys and values before the convolution in one, then z, b and a."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The mixer's outputs for the nodes of the pass, `[rows, nodes, hidden]`."""
        original, (rows, nodes, _) = self.original, hidden_states.shape
        mixed, z, b, a = self._projected(self.unmasked(hidden_states))
        mixed = precise(self._act(self.run(self._conv, mixed)))
        query, key, value = mixed.split([original.key_dim, original.key_dim, original.value_dim], dim=-1)
        query, key = (_normed(part.view(rows, nodes, -1, original.head_k_dim)) for part in (query, key))
        beta = precise(b).sigmoid()
        if getattr(original, "allow_neg_eigval", False):
            beta = 2 * beta
        out = self.run(
            self._scan,
            query * original.head_k_dim**-0.5,
            key,
            value.view(rows, nodes, -1, original.head_v_dim),
            softplus(precise(a) + original.dt_bias) * -precise(original.A_log).exp(),
            beta,
        )
        norm = original.norm if hasattr(original, "norm") else original.o_norm
        last = original.out_proj if hasattr(original, "out_proj") else original.o_proj
        out = out.reshape(-1, original.head_v_dim).to(hidden_states.dtype)
        out = norm(out, z.reshape(-1, original.head_v_dim))
        return last(out.view(rows, nodes, -1))  # type: ignore[no-any-return]


class Qwen3NextMixer(GatedDeltaMixer):
    """Qwen3NextGatedDeltaNet."""

    def _projected(self, hidden: Tensor) -> Vectors:
        original = self.original
        query, key, value, z, b, a = original.fix_query_key_value_ordering(
            original.in_proj_qkvz(hidden), original.in_proj_ba(hidden)
        )
        return torch.cat([part.flatten(2) for part in (query, key, value)], -1), z, b, a


class Qwen35Mixer(GatedDeltaMixer):
    """Qwen3_5GatedDeltaNet and that of its mixture of experts, with a projection for each."""

    def _projected(self, hidden: Tensor) -> Vectors:
        original = self.original
        return (
            original.in_proj_qkv(hidden),
            original.in_proj_z(hidden),
            original.in_proj_b(hidden),
            original.in_proj_a(hidden),
        )


class OlmoHybridMixer(GatedDeltaMixer):
    """OlmoHybridGatedDeltaNet, with a projection for each part."""

    def _projected(self, hidden: Tensor) -> Vectors:
        original = self.original
        mixed = torch.cat([original.q_proj(hidden), original.k_proj(hidden), original.v_proj(hidden)], -1)
        return mixed, original.g_proj(hidden), original.b_proj(hidden), original.a_proj(hidden)


def _normed(vectors: Tensor) -> Tensor:
    return vectors * torch.rsqrt((vectors * vectors).sum(-1, keepdim=True) + 1e-6)
