"""The state of a gated delta layer, and the mixers of the models that have one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import softplus
from transformers.activations import ACT2FN

from draftwood.backends.recurrent.conv import ConvState
from draftwood.backends.recurrent.mixer import Mixer, precise
from draftwood.backends.recurrent.states import LayerState, Pass, States, Vectors, grown
from draftwood.kernels.gated_delta_tree import dispatch as gated_delta_tree


class GatedDeltaState(LayerState):
    """Nodes hold keys, deltas and the log decay; the state is `[rows, heads, p, n]`."""

    def blank(self, new: Vectors) -> Tensor:
        """Zeros."""
        _, keys, values, _, _ = new
        rows, _, heads, dim = values.shape
        return values.new_zeros(rows, heads, dim, keys.shape[-1])

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


def qwen3_next(given: Any, hidden: Tensor) -> Vectors:
    """Queries, keys and values before the convolution in one, then z, b and a."""
    query, key, value, z, b, a = given.fix_query_key_value_ordering(
        given.in_proj_qkvz(hidden), given.in_proj_ba(hidden)
    )
    return torch.cat([part.flatten(2) for part in (query, key, value)], -1), z, b, a


def qwen3_5(given: Any, hidden: Tensor) -> Vectors:
    """The same, from a projection for each."""
    return (
        given.in_proj_qkv(hidden),
        given.in_proj_z(hidden),
        given.in_proj_b(hidden),
        given.in_proj_a(hidden),
    )


def olmo_hybrid(given: Any, hidden: Tensor) -> Vectors:
    """The same, from a projection for each part."""
    mixed = torch.cat([given.q_proj(hidden), given.k_proj(hidden), given.v_proj(hidden)], -1)
    return mixed, given.g_proj(hidden), given.b_proj(hidden), given.a_proj(hidden)


PROJECTIONS: dict[str, Callable[[Any, Tensor], Vectors]] = {
    "Qwen3NextGatedDeltaNet": qwen3_next,
    "Qwen3_5GatedDeltaNet": qwen3_5,
    "Qwen3_5MoeGatedDeltaNet": qwen3_5,
    "OlmoHybridGatedDeltaNet": olmo_hybrid,
}
"""What leads to the convolution, by the name of the mixer's class."""


class GatedDeltaMixer(Mixer):
    """Qwen3-Next's mixer and those made after it: Qwen3.5, OlmoHybrid."""

    def __init__(self, given: Any, states: States) -> None:
        super().__init__(given, states)
        self._project = PROJECTIONS[type(given).__name__]
        self._act = ACT2FN[given.activation]
        self._conv = self._keeps(ConvState(given.conv1d))
        self._scan = self._keeps(GatedDeltaState())

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The mixer's outputs for the nodes of the pass, `[rows, nodes, hidden]`."""
        given, (rows, nodes, _) = self.given, hidden_states.shape
        mixed, z, b, a = self._project(given, hidden_states)
        mixed = precise(self._act(self._states.run(self._conv, mixed)))
        query, key, value = mixed.split([given.key_dim, given.key_dim, given.value_dim], dim=-1)
        query, key = (_normed(part.view(rows, nodes, -1, given.head_k_dim)) for part in (query, key))
        beta = precise(b).sigmoid()
        if getattr(given, "allow_neg_eigval", False):
            beta = 2 * beta
        out = self._states.run(
            self._scan,
            query * given.head_k_dim**-0.5,
            key,
            value.view(rows, nodes, -1, given.head_v_dim),
            softplus(precise(a) + given.dt_bias) * -precise(given.A_log).exp(),
            beta,
        )
        norm = given.norm if hasattr(given, "norm") else given.o_norm
        last = given.out_proj if hasattr(given, "out_proj") else given.o_proj
        out = out.reshape(-1, given.head_v_dim).to(hidden_states.dtype)
        out = norm(out, z.reshape(-1, given.head_v_dim))
        return last(out.view(rows, nodes, -1))  # type: ignore[no-any-return]


def _normed(vectors: Tensor) -> Tensor:
    return vectors * torch.rsqrt((vectors * vectors).sum(-1, keepdim=True) + 1e-6)
