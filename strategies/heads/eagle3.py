"""The EAGLE-3 head: one decoder layer over a token's embedding and a state."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleList, Parameter
from torch.nn.functional import silu

from draftwood import InvalidInput
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.pairs import HeadsAndWidth, PairAttention
from draftwood.strategies.heads.rope import frequencies, rotated
from draftwood.strategies.heads.vocabulary import check_target_ids, is_everything

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

    def forward(self, states: Tensor, turn: Turn, attention: PairAttention) -> Tensor:
        queries = self.q_proj(states).unflatten(-1, (-1, self.dim))
        if self.q_norm is not None:
            queries = self.q_norm(queries)
        own = [some.transpose(1, 2) for some in (turn(queries), *self.keys_values(states, turn))]
        seen = attention.attend(own[0], *attention.hold(own[1], own[2]), self.dim**-0.5)
        attended: Tensor = self.o_proj(seen.flatten(2))
        return attended

    def keys_values(self, states: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        keys, values = (
            projection(states).unflatten(-1, (-1, self.dim)) for projection in (self.k_proj, self.v_proj)
        )
        return turn(keys if self.k_norm is None else self.k_norm(keys)), values


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


class Layer(Module):
    """The head's decoder layer, whose first norms are of the embedding and of the state apart."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        width, eps = config.hidden_size, config.norm_eps
        self.hidden_norm, self.input_layernorm, self.post_attention_layernorm = (
            RMSNorm(width, eps) for _ in range(3)
        )
        self.self_attn = Attention(config, 2 * width)
        self.mlp = MLP(config)
        self.norm_before_residual = config.norm_before_residual

    def forward(self, embeddings: Tensor, states: Tensor, turn: Turn, attention: PairAttention) -> Tensor:
        both, normed = self._normed(embeddings, states)
        residual = normed if self.norm_before_residual else states
        out: Tensor = residual + self.self_attn(both, turn, attention)
        more: Tensor = self.mlp(self.post_attention_layernorm(out))
        return out + more

    def keys_values(self, embeddings: Tensor, states: Tensor, turn: Turn) -> tuple[Tensor, Tensor]:
        return self.self_attn.keys_values(self._normed(embeddings, states)[0], turn)

    def _normed(self, embeddings: Tensor, states: Tensor) -> tuple[Tensor, Tensor]:
        normed: Tensor = self.hidden_norm(states)
        return torch.cat([self.input_layernorm(embeddings), normed], -1), normed


class Eagle3Head(Module):
    """An EAGLE-3 head with the parameters of `config`, to be loaded or trained.

    A *pair* is a token and a state: of the committed text, token i + 1 and what `project` makes of the
    target's features of token i; below the root, a drafted token and what was recycled at its parent. `step`
    makes of pairs states, whose `logits` say which token follows.

    Parameters have the names of SafeAILab's files. `target_ids` `[draft_vocab_size]` int64 are the target's
    tokens that the head's own stand for.

    Source: EAGLE-3 (Li et al. 2025, arXiv 2503.01840), section 3.
    """

    target_ids: Tensor
    inverse: Tensor

    def __init__(self, config: Eagle3Config, *, target_ids: Tensor | None = None) -> None:
        """
        Raises:
            InvalidInput: `target_ids` that are not so many different tokens of the target.
        """
        super().__init__()
        self.config = config
        width, features = config.hidden_size, config.tap_count * config.target_hidden_size
        self.fc = Linear(features, width, bias=False)
        self.midlayer = Layer(config)
        self.norm = RMSNorm(width, config.norm_eps)
        self.lm_head = Linear(width, config.draft_vocab_size, bias=False) if config.own_head else None
        # No module of this one: the target's output head is the target's.
        self.lent: list[Callable[[Tensor], Tensor]] = []
        self.embed_tokens = Embedding(config.vocab_size, width) if config.own_embedding else None
        self.input_norm = RMSNorm(features, config.norm_eps) if config.norm_before_fc else None
        self.fc_norm = (
            ModuleList(RMSNorm(config.target_hidden_size, config.norm_eps) for _ in range(config.tap_count))
            if config.fc_norm
            else None
        )
        with torch.device("cpu"):  # also where the weights are on none yet
            self.inverse, self.rope_scale = frequencies(
                config.rope, head_dim=config.head_dim, longest=config.max_positions
            )
            ids = torch.arange(config.draft_vocab_size) if target_ids is None else target_ids.long()
            check_target_ids(ids, proposed=config.draft_vocab_size, vocabulary=config.vocab_size)
            self.all_tokens = is_everything(ids, config.vocab_size)
        self.register_buffer("target_ids", ids, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Eagle3Head:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        # Angles of far positions need float32, whatever the weights are in.
        self.inverse = self.inverse.to(self.target_ids.device)
        return self

    @property
    def width(self) -> int:
        return self.config.hidden_size

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def like(self) -> Tensor:
        return self.fc.weight.detach()

    @property
    def kept(self) -> tuple[HeadsAndWidth, HeadsAndWidth]:
        each = self.config.key_value_heads, self.config.head_dim
        return each, each

    @property
    def max_positions(self) -> int | None:
        """The number of positions that its file names; None where it names none."""
        return self.config.max_positions

    def taps_in(self, layers: int) -> tuple[int, ...]:
        """Returns `config.taps_in(layers)`."""
        return self.config.taps_in(layers)

    def project(self, features: Tensor) -> Tensor:
        """States `[..., hidden_size]` of the target's features `[..., taps * target_hidden_size]`."""
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.chunk(len(self.fc_norm), -1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        states: Tensor = self.fc(features)
        return states

    def step(self, embeddings: Tensor, states: Tensor, positions: Tensor, attention: PairAttention) -> Tensor:
        """Returns the layer's outputs for pairs; see `PairHead.step`."""
        out: Tensor = self.midlayer(embeddings, states, self.turn(positions), attention)
        return out

    def keys_values(self, embeddings: Tensor, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The rotated keys, and values, of pairs; see `PairHead.keys_values`."""
        return self.midlayer.keys_values(embeddings, states, self.turn(positions))

    def turn(self, positions: Tensor) -> Turn:
        """The rotation to `positions` `[rows, n]`."""
        return lambda some: rotated(some, positions, self.inverse, self.rope_scale)

    def logits(self, out: Tensor) -> Tensor:
        """Logits `[..., draft_vocab_size]` of what `step` gave."""
        states = self.norm(out)
        if self.lm_head is not None:
            logits: Tensor = self.lm_head(states)
            return logits
        if not self.lent:
            raise InvalidInput(
                "The head has no output head of its own, and was lent none; call borrow() with its target's "
                "output_head first."
            )
        return self.lent[0](states)

    def borrow(self, output: Callable[[Tensor], Tensor]) -> None:
        """Use the target's output head, from states to logits, where it has none of its own."""
        self.lent = [output]

    def target_logits(self, out: Tensor) -> Tensor:
        """Returns logits over the target's tokens `[..., vocab_size]`, -inf for those never proposed."""
        logits = self.logits(out)
        if self.all_tokens:
            return logits
        wide = logits.new_full((*logits.shape[:-1], self.config.vocab_size), -torch.inf)
        return wide.index_copy_(-1, self.target_ids, logits)

    def recycled(self, out: Tensor) -> Tensor:
        """The state that a token drafted behind `out` is paired with."""
        states: Tensor = self.norm(out) if self.config.norm_output else out
        return states
