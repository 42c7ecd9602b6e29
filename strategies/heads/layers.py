"""The decoder layers of heads over pairs: norms, attention and MLPs under the names of SafeAILab's files."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Linear, Module, Parameter
from torch.nn.functional import silu

from draftwood.strategies.heads.config import Eagle3Config, Latent
from draftwood.strategies.heads.pairs import PairAttention
from draftwood.strategies.heads.rope import softmax_factor

Turn = Callable[[Tensor], Tensor]
"""Rotates queries or keys `[rows, n, heads, dim]` to their positions."""


class RMSNorm(Module):
    """`weight * x / sqrt(mean(x ** 2) + eps)`, the mean in float32 at least."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        wide = states if states.dtype == torch.float64 else states.float()
        scaled = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(states.dtype)


class Attention(Module):
    """Projections of states of the width `wide`; the attention itself is the caller's."""

    def __init__(self, config: Eagle3Config, wide: int) -> None:
        super().__init__()
        dim = config.head_dim
        self.dim = dim
        bias = config.attention_bias
        self.q_proj = Linear(wide, config.attention_heads * dim, bias=bias)
        self.k_proj = Linear(wide, config.key_value_heads * dim, bias=bias)
        self.v_proj = Linear(wide, config.key_value_heads * dim, bias=bias)
        self.o_proj = Linear(config.attention_heads * dim, config.hidden_size, bias=config.output_bias)
        self.q_norm = RMSNorm(dim, config.norm_eps) if config.query_key_norm else None
        self.k_norm = RMSNorm(dim, config.norm_eps) if config.query_key_norm else None

    def forward(self, states: Tensor, turn: Turn, attention: PairAttention, *, number: int) -> Tensor:
        queries = self.q_proj(states).unflatten(-1, (-1, self.dim))
        if self.q_norm is not None:
            queries = self.q_norm(queries)
        own = [some.transpose(1, 2) for some in (turn(queries), *self.keys_values(states, turn))]
        seen = attention.attend(own[0], *attention.hold(own[1], own[2], number), self.dim**-0.5)
        attended: Tensor = self.o_proj(seen.flatten(2))
        return attended

    def keys_values(self, states: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        keys, values = (
            projection(states).unflatten(-1, (-1, self.dim)) for projection in (self.k_proj, self.v_proj)
        )
        return turn(keys if self.k_norm is None else self.k_norm(keys)), values


class LatentAttention(Module):
    """Attention whose keys and values are made of a narrow state, as DeepSeek's layers have it.

    Only the last `rope_dim` numbers of each query and key are rotated; the keys of all heads share theirs.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.
    """

    def __init__(self, config: Eagle3Config, sizes: Latent, wide: int) -> None:
        super().__init__()
        heads, rank, eps = config.attention_heads, sizes.query_rank, config.norm_eps
        self.sizes, self.heads = sizes, heads
        if rank is None:
            self.q_proj = Linear(wide, heads * sizes.key_dim, bias=False)
        else:
            self.q_a_proj = Linear(wide, rank, bias=False)
            self.q_a_layernorm = RMSNorm(rank, eps)
            self.q_b_proj = Linear(rank, heads * sizes.key_dim, bias=False)
        self.kv_a_proj_with_mqa = Linear(wide, sizes.rank + sizes.rope_dim, bias=False)
        self.kv_a_layernorm = RMSNorm(sizes.rank, eps)
        self.kv_b_proj = Linear(sizes.rank, heads * (sizes.plain_dim + sizes.value_dim), bias=False)
        self.o_proj = Linear(heads * sizes.value_dim, config.hidden_size, bias=False)
        self.scale = sizes.key_dim**-0.5 * softmax_factor(config.rope)

    def forward(self, states: Tensor, turn: Turn, attention: PairAttention, *, number: int) -> Tensor:
        keys, values = self.keys_values(states, turn)
        own = [some.transpose(1, 2) for some in (self._queries(states, turn), keys, values)]
        seen = attention.attend(own[0], *attention.hold(own[1], own[2], number), self.scale)
        attended: Tensor = self.o_proj(seen.flatten(2))
        return attended

    def keys_values(self, states: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        sizes = self.sizes
        narrow, turning = self.kv_a_proj_with_mqa(states).split([sizes.rank, sizes.rope_dim], -1)
        made = self.kv_b_proj(self.kv_a_layernorm(narrow)).unflatten(-1, (self.heads, -1))
        plain, values = made.split([sizes.plain_dim, sizes.value_dim], -1)
        turned = turn(self._paired(turning).unsqueeze(2)).expand(-1, -1, self.heads, -1)
        return torch.cat([plain, turned], -1), values

    def _queries(self, states: Tensor, turn: Turn) -> Tensor:
        if self.sizes.query_rank is None:
            made = self.q_proj(states)
        else:
            made = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(states)))
        plain, turning = made.unflatten(-1, (self.heads, -1)).split(
            [self.sizes.plain_dim, self.sizes.rope_dim], -1
        )
        return torch.cat([plain, turn(self._paired(turning))], -1)

    def _paired(self, states: Tensor) -> Tensor:
        """Returns the numbers that turn together half of their count apart, as `turned_by` wants them."""
        return states.unflatten(-1, (-1, 2)).mT.flatten(-2) if self.sizes.interleaved else states


def attention_of(config: Eagle3Config, wide: int) -> Attention | LatentAttention:
    """Returns the attention that `config` describes, over states of the width `wide`."""
    if config.latent is None:
        return Attention(config, wide)
    return LatentAttention(config, config.latent, wide)


class MLP(Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        inner = config.intermediate_size
        self.gate_proj = Linear(config.hidden_size, inner, bias=False)
        self.up_proj = Linear(config.hidden_size, inner, bias=False)
        self.down_proj = Linear(inner, config.hidden_size, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.down_proj(silu(self.gate_proj(states)) * self.up_proj(states))
        return out


class FirstLayer(Module):
    """The head's first decoder layer, which norms the embedding and the state separately."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.norm_eps
        self.hidden_norm, self.input_layernorm, self.post_attention_layernorm = (
            RMSNorm(width, eps) for _ in range(3)
        )
        self.self_attn = attention_of(config, 2 * width)
        self.mlp = MLP(config)
        self.norm_before_residual = config.norm_before_residual

    def forward(self, embeddings: Tensor, states: Tensor, turn: Turn, attention: PairAttention) -> Tensor:
        both, normed = self._normed(embeddings, states)
        residual = normed if self.norm_before_residual else states
        out: Tensor = residual + self.self_attn(both, turn, attention, number=0)
        more: Tensor = self.mlp(self.post_attention_layernorm(out))
        return out + more

    def keys_values(self, embeddings: Tensor, states: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        return self.self_attn.keys_values(self._normed(embeddings, states)[0], turn)

    def _normed(self, embeddings: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        normed: Tensor = self.hidden_norm(states)
        return torch.cat([self.input_layernorm(embeddings), normed], -1), normed


class PlainLayer(Module):
    """An ordinary decoder layer, after the first."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.norm_eps
        self.input_layernorm, self.post_attention_layernorm = (RMSNorm(width, eps) for _ in range(2))
        self.self_attn = attention_of(config, width)
        self.mlp = MLP(config)

    def forward(self, states: Tensor, turn: Turn, attention: PairAttention, *, number: int) -> Tensor:
        read = self.input_layernorm(states)
        mixed: Tensor = states + self.self_attn(read, turn, attention, number=number)
        more: Tensor = self.mlp(self.post_attention_layernorm(mixed))
        return mixed + more
