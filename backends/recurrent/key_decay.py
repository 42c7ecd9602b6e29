"""States whose decay differs by place of the key: gated linear attention, and its delta rule (KDA)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor
from transformers.activations import ACT2FN

from draftwood.backends.recurrent.conv import ConvState
from draftwood.backends.recurrent.layer_state import LayerState, Vectors, grown
from draftwood.backends.recurrent.mixer import Mixer, precise
from draftwood.backends.recurrent.passes import Pass
from draftwood.backends.recurrent.states import States
from draftwood.kernels.gated_delta_tree.reference import solved


class KeyDecayState(LayerState):
    """`x_t = x_(t-1) diag(exp(a_t)) + v_t k_t'`, put out as `x_t q_t`, a decay for each place of the key.

    `run` takes q and k `[rows, nodes, heads, n]`, v `[rows, nodes, heads, p]` and the log decay a
    `[rows, nodes, heads, n]`, at most 0. Nodes keep k, v and a; the state is `[rows, heads, p, n]`. A pass
    holds `[rows, nodes, columns, heads, n]` numbers.
    Source: Gated linear attention (arXiv 2312.06635), equation 3, along a tree.
    """

    traceable = False

    @property
    def not_converted(self) -> None:
        """None: such passes are not captured, but no shape or loop in them depends on a value."""

    def blank(self, new: Vectors) -> Tensor:
        """Zeros."""
        _, keys, values, *_ = new
        rows, _, heads, dim = values.shape
        return values.new_zeros(rows, heads, dim, keys.shape[-1])

    def attend(self, state: Tensor, old: Vectors, new: Vectors, now: Pass) -> tuple[Tensor, Vectors]:
        """Attention with a decay in every product; `new` is q, k, v and the log decay."""
        queries, *kept = new
        keys, values, decay = grown(old, tuple(kept))
        total, decayed = _decayed_keys(keys, decay, now.visible)
        out = _carried(state, queries, total) + _weighed(_products(queries, decayed), values)
        return out, tuple(kept)

    @classmethod
    def replay_all(
        cls, layers: Sequence[Self], states: Sequence[Tensor], nodes: Sequence[Vectors], kept: Tensor
    ) -> list[Tensor]:
        """One decayed sum over the path."""
        after = []
        for state, (keys, values, decay) in zip(states, nodes, strict=True):
            total, decayed = _decayed_keys(keys, decay, kept.unsqueeze(1))
            values = torch.where(kept[..., None, None], values, 0.0)  # a dropped node may hold no numbers
            added = torch.einsum("rchp,rchn->rhpn", values, decayed.squeeze(1))
            after.append(state * total.squeeze(1).exp().unsqueeze(2) + added)
        return after


class KeyDecayDeltaState(KeyDecayState):
    """A state with these decays that is changed by the delta rule.

    `d_t = b_t (v_t - x_(t-1) diag(exp(a_t)) k_t)` takes the place of `v_t`.

    `run` takes q, k, v, a and b `[rows, nodes, heads]`. Nodes keep k, d and a.
    Source: Kimi Linear (arXiv 2510.26692), equation 1, along a tree.
    """

    kept_as = "recurrent_states"

    def adopted(self, state: Tensor) -> Tensor:
        """Returns `[rows, heads, n, p]` transposed."""
        return precise(state.transpose(2, 3).contiguous())

    def attend(self, state: Tensor, old: Vectors, new: Vectors, now: Pass) -> tuple[Tensor, Vectors]:
        """Solve for the deltas of the new nodes, which depend on the deltas of their ancestors."""
        queries, key, values, decay, rates = new
        known = old[1] if old else values[:, :0]
        keys, decays = grown((old[0], old[2]) if old else (), (key, decay))
        total, decayed = _decayed_keys(keys, decays, now.visible)
        seen, rates = _products(key, decayed), rates.unsqueeze(-1)
        first = known.shape[1]
        wanted = rates * (values - _carried(state, key, total) - _weighed(seen[..., :first], known))
        # Ancestors come first, so that the system is triangular; a node itself is on its diagonal.
        system = rates.transpose(1, 2) * seen[..., first:]
        deltas = solved(system, wanted.transpose(1, 2)).transpose(1, 2)
        among = _products(queries, decayed)
        out = _carried(state, queries, total) + _weighed(among, torch.cat([known, deltas], 1))
        return out, (key, deltas, decay)


def _decayed_keys(keys: Tensor, decay: Tensor, visible: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the log decay from the committed state to every node, and all keys as every node sees them.

    Args:
        keys: `[rows, columns, heads, n]`.
        decay: their log decay, of the same shape.
        visible: bool `[rows, nodes, columns]`.

    Returns:
        `[rows, nodes, heads, n]` and `[rows, nodes, columns, heads, n]`; 0 for a key that is not seen.
    """
    mask = visible[..., None, None]
    own = torch.where(mask, decay.unsqueeze(1), 0.0)
    # What a path adds after a column: sums from the end have no differences of large numbers.
    sums = own.flip(2).cumsum(2).flip(2)
    after = torch.nn.functional.pad(sums[:, :, 1:], (0, 0, 0, 0, 0, 1))
    return sums[:, :, 0], torch.where(mask, after.exp() * keys.unsqueeze(1), 0.0)


def _carried(state: Tensor, vectors: Tensor, total: Tensor) -> Tensor:
    """Returns the committed state's products `[rows, nodes, heads, p]` with decayed vectors."""
    return torch.einsum("rhpn,rthn->rthp", state, vectors * total.exp())


def _products(vectors: Tensor, decayed: Tensor) -> Tensor:
    """Returns `[rows, heads, nodes, columns]`, the products of every node's vector with the keys it sees."""
    return torch.einsum("rthn,rtchn->rhtc", vectors, decayed)


def _weighed(weights: Tensor, values: Tensor) -> Tensor:
    """Returns sums of values `[rows, columns, heads, p]` by weights, `[rows, nodes, heads, p]`."""
    return torch.einsum("rhtc,rchp->rthp", weights, values)


class KimiDeltaMixer(Mixer):
    """KimiLinearDeltaAttention and BailingHybridDeltaAttention, which differ in their output gate."""

    def __init__(self, original: Any, states: States) -> None:
        super().__init__(original, states)
        self._act = ACT2FN[original.activation]
        self._conv = self.keeps(ConvState(original.conv1d))
        self._scan = self.keeps(KeyDecayDeltaState())

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """The mixer's outputs for the nodes of the pass, `[rows, nodes, hidden]`."""
        hidden_states = self.unmasked(hidden_states)
        original, shape = self.original, (*hidden_states.shape[:2], -1, self.original.head_dim)
        projections = (original.q_proj, original.k_proj, original.v_proj)
        mixed = torch.cat([projection(hidden_states) for projection in projections], -1)
        convolved = self._act(self.run(self._conv, mixed.to(original.conv1d.weight.dtype)))
        parts = precise(convolved.to(hidden_states.dtype)).chunk(3, -1)
        query, key, value = (part.view(shape) for part in parts)
        out = self.run(
            self._scan,
            _normed(query) * original.head_dim**-0.5,
            _normed(key),
            value,
            precise(original.forget_gate(hidden_states)),
            precise(original.b_proj(hidden_states).sigmoid()),
        )
        has_one = hasattr(original, "g_proj")
        gate = (
            original.g_proj(hidden_states) if has_one else original.g_b_proj(original.g_a_proj(hidden_states))
        )
        out = original.o_norm(out.to(hidden_states.dtype), gate.view(shape)).flatten(2)
        return original.o_proj(out)  # type: ignore[no-any-return]


def _normed(vectors: Tensor) -> Tensor:
    return vectors / torch.sqrt((vectors * vectors).sum(-1, keepdim=True) + 1e-6)
