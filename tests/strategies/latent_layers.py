"""MTP layers with latent attention, from their definitions: DeepSeek-V3.2, GLM-5 and LongCat-Flash."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import layer_norm, silu


def written_layer(kind: Any, stored: dict[str, Tensor], model: Any) -> Callable[[Tensor, Tensor], Tensor]:
    """Returns the layer of `stored` as a function of embeddings and states `[n, width]` of pairs.

    Source: DeepSeek-V3 (arXiv 2412.19437), equations 21 to 23; its attention, DeepSeek-V2 (arXiv 2405.04434),
    equations 9 to 19; the indexer, DeepSeek-V3.2 (arXiv 2512.02556), equations 1 and 2; the factors of
    LongCat-Flash's narrow states (arXiv 2509.01322), section 2.2.
    """
    options, eps = kind.options, model.config.rms_norm_eps
    weights = {name: tensor.double() for name, tensor in stored.items()}
    layer = _Layer(kind, weights, eps, model)

    def forward(embeddings: Tensor, states: Tensor) -> Tensor:
        first, second, last, projection = (weights[f"{name}.weight"] for name in kind.outer)
        pair = torch.cat([_norm(first, embeddings, eps), _norm(second, states, eps)], -1)
        out = pair @ projection.T
        out = out + layer.attention(_norm(layer.of("input_layernorm"), out, eps), options)
        out = out + layer.mlp(_norm(layer.of("post_attention_layernorm"), out, eps), options)
        return _norm(last, out, eps)

    return forward


def _norm(weight: Tensor, states: Tensor, eps: float) -> Tensor:
    return weight * states / (states.pow(2).mean(-1, keepdim=True) + eps).sqrt()


def _turned(states: Tensor, base: float, *, neighbours: bool) -> Tensor:
    """`[n, heads, dim]`, pair by pair: neighbouring numbers turn together, or those half of `dim` apart."""
    dim, places = states.shape[-1], torch.arange(len(states), dtype=torch.float64).unsqueeze(1)
    out = states.clone()
    for pair in range(dim // 2):
        angle = places * base ** (-2 * pair / dim)
        one, two = (2 * pair, 2 * pair + 1) if neighbours else (pair, pair + dim // 2)
        out[..., one] = states[..., one] * angle.cos() - states[..., two] * angle.sin()
        out[..., two] = states[..., two] * angle.cos() + states[..., one] * angle.sin()
    return out


class _Layer:
    def __init__(self, kind: Any, weights: dict[str, Tensor], eps: float, model: Any) -> None:
        self.kind, self.weights, self.eps = kind, weights, eps
        self.base = model.config.rope_parameters["rope_theta"]
        self.scaling = model.config.routed_scaling_factor

    def of(self, name: str) -> Tensor:
        found = [self.weights.get(f"{begin}{name}.weight") for begin in self.kind.layer]
        return next(weight for weight in found if weight is not None)

    def attention(self, states: Tensor, sizes: dict[str, Any]) -> Tensor:
        heads, plain, turning = 4, sizes["qk_nope_head_dim"], sizes["qk_rope_head_dim"]
        rank, value, width = sizes["kv_lora_rank"], sizes["v_head_dim"], states.shape[-1]
        narrow = _norm(
            self.of("self_attn.q_a_layernorm"), states @ self.of("self_attn.q_a_proj").T, self.norm_eps
        )
        queries = (narrow @ self.of("self_attn.q_b_proj").T).unflatten(-1, (heads, plain + turning))
        compressed = states @ self.of("self_attn.kv_a_proj_with_mqa").T
        latent = _norm(self.of("self_attn.kv_a_layernorm"), compressed[:, :rank], self.norm_eps)
        if self.kind.sparse == "all":
            queries, latent = queries * (width / narrow.shape[-1]) ** 0.5, latent * (width / rank) ** 0.5
        wide = (latent @ self.of("self_attn.kv_b_proj").T).unflatten(-1, (heads, plain + value))
        shared = _turned(compressed[:, None, rank:], self.base, neighbours=True).expand(-1, heads, -1)
        keys = torch.cat([wide[..., :plain], shared], -1)
        queries = torch.cat(
            [queries[..., :plain], _turned(queries[..., plain:], self.base, neighbours=True)], -1
        )
        seen = torch.ones(len(states), len(states), dtype=torch.bool).tril()
        if self.kind.sparse != "all":
            seen = seen & self._chosen(states, narrow, sizes)
        scores = torch.einsum("qhd,khd->hqk", queries, keys) / (plain + turning) ** 0.5
        mixed = scores.masked_fill(~seen, -torch.inf).softmax(-1)
        out = torch.einsum("hqk,khd->qhd", mixed, wide[..., plain:])
        return out.flatten(1) @ self.of("self_attn.o_proj").T

    norm_eps = 1e-6
    """The epsilon of the norms of the narrow states, whatever the model's epsilon is."""

    def _chosen(self, states: Tensor, narrow: Tensor, sizes: dict[str, Any]) -> Tensor:
        """Returns the keys that each query sees, `[n, n]`: the earlier ones with the largest scores."""
        count, dim, turning = sizes["index_n_heads"], sizes["index_head_dim"], sizes["qk_rope_head_dim"]
        queries = (narrow @ self.of("self_attn.indexer.wq_b").T).unflatten(-1, (count, dim))
        bias = next(self.weights.get(f"{begin}self_attn.indexer.k_norm.bias") for begin in self.kind.layer)
        weight = self.of("self_attn.indexer.k_norm")
        keys = layer_norm(states @ self.of("self_attn.indexer.wk").T, (dim,), weight, bias, 1e-6).unsqueeze(1)
        neighbours = self.kind.sparse == "neighbours"
        queries, keys = (
            torch.cat(
                [_turned(some[..., :turning], self.base, neighbours=neighbours), some[..., turning:]], -1
            )
            for some in (queries, keys)
        )
        shares = states @ self.of("self_attn.indexer.weights_proj").T
        chosen = torch.zeros(len(states), len(states), dtype=torch.bool)
        for query in range(len(states)):
            alike = (queries[query] @ keys[: query + 1, 0].T).relu()  # [heads, keys]
            best = (shares[query] @ alike).topk(min(sizes["index_topk"], query + 1)).indices
            chosen[query, best] = True
        return chosen

    def mlp(self, states: Tensor, sizes: dict[str, Any]) -> Tensor:
        if self.kind.sparse == "all":
            return self._gated("mlp", states)
        scores = (states @ self.of("mlp.gate").T).sigmoid()
        bias = self.weights[f"{self.kind.layer[0]}mlp.gate.e_score_correction_bias"]
        out = self._gated("mlp.shared_experts", states)
        for place, state in enumerate(states):
            best = (scores[place] + bias).topk(sizes["num_experts_per_tok"]).indices
            for expert in best.tolist():
                share = scores[place, expert] / scores[place, best].sum() * self.scaling
                out[place] = out[place] + share * self._gated(f"mlp.experts.{expert}", state)
        return out

    def _gated(self, name: str, states: Tensor) -> Tensor:
        gate, up, down = (self.of(f"{name}.{part}_proj") for part in ("gate", "up", "down"))
        return (silu(states @ gate.T) * (states @ up.T)) @ down.T
