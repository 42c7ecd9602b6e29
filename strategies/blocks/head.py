"""The forward of a block drafter: slots that read the target's features and each other."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleList, Parameter, Sequential, SiLU
from torch.nn.functional import pad, scaled_dot_product_attention, silu

from draftwood.strategies.blocks.config import BlockConfig
from draftwood.strategies.heads.rope import frequencies, turned_by
from draftwood.strategies.heads.rotation import Rotation, undone
from draftwood.strategies.heads.vocabulary import check_target_ids, is_everything

KeysValues = list[tuple[Tensor, Tensor]]
"""Of every layer the keys and values of a context, each `[..., length, key_value_heads, head_dim]`."""


class Norm(Module):
    """Root mean square norm over the last dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, states: Tensor) -> Tensor:
        exact = states if states.dtype == torch.float64 else states.float()
        scaled = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * scaled.to(states.dtype)


class Attention(Module):
    """Qwen3's projections."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        width, dim, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.q_proj = Linear(width, config.attention_heads * dim, bias=bias)
        self.k_proj = Linear(width, config.key_value_heads * dim, bias=bias)
        self.v_proj = Linear(width, config.key_value_heads * dim, bias=bias)
        self.o_proj = Linear(config.attention_heads * dim, width, bias=config.output_bias)
        self.q_norm, self.k_norm = (Norm(dim, config.norm_eps) for _ in range(2))
        self.dim = dim

    def keys_values(self, states: Tensor, turn: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        keys, values = (
            projection(states).unflatten(-1, (-1, self.dim)) for projection in (self.k_proj, self.v_proj)
        )
        return turned_by(self.k_norm(keys), *turn), values

    def queries(self, states: Tensor, turn: tuple[Tensor, Tensor]) -> Tensor:
        return turned_by(self.q_norm(self.q_proj(states).unflatten(-1, (-1, self.dim))), *turn)


class Feed(Module):
    """Qwen3's gated layer."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate_proj = Linear(width, inner, bias=False)
        self.up_proj = Linear(width, inner, bias=False)
        self.down_proj = Linear(inner, width, bias=False)

    def forward(self, states: Tensor) -> Tensor:
        out: Tensor = self.down_proj(silu(self.gate_proj(states)) * self.up_proj(states))
        return out


class Layer(Module):
    """One decoder layer."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.self_attn, self.mlp = Attention(config), Feed(config)
        self.input_layernorm, self.post_attention_layernorm = (
            Norm(config.hidden_size, config.norm_eps) for _ in range(2)
        )


class MarkovHead(Module):
    """The tokens before a slot change its logits: DSpark's `markov_w2` of a vector of `markov_rank`.

    The vector is `markov_w1[token]` of the token before; `gated` by the slot's state and itself; or, of
    `rnn`, put out by a recurrence over the block's tokens and slots, whose state is as wide.

    Source: DSpark (arXiv 2607.05147), and the modules of DeepSpec and speculators.
    """

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        rank, width = config.markov_rank, config.hidden_size
        self.kind = config.markov_type
        self.markov_w1 = Embedding(config.vocab_size, rank)
        self.markov_w2 = Linear(rank, config.proposed, bias=False)
        if self.kind == "gated":
            self.gate_proj = Linear(width + rank, rank)
        elif self.kind == "rnn":
            self.joint_proj = Linear(2 * rank + width, 3 * rank)

    def forward(self, tokens: Tensor, slots: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Returns the correction `[..., proposed]`, and the state `[..., rank]` of `rnn` after these tokens.

        Args:
            tokens: int64 `[...]`, those before the slots.
            slots: their states, `[..., hidden]`.
            before: the state of `rnn` before the tokens; None at its beginning.
        """
        vector, after = self.markov_w1(tokens), None
        if self.kind == "gated":
            vector = torch.sigmoid(self.gate_proj(torch.cat([slots, vector], -1))) * vector
        elif self.kind == "rnn":
            before = torch.zeros_like(vector) if before is None else before
            gate, new, out = self.joint_proj(torch.cat([before, vector, slots], -1)).chunk(3, -1)
            gate = torch.sigmoid(gate)
            after, vector = gate * before + (1 - gate) * torch.tanh(new), torch.tanh(out)
        return self.markov_w2(vector), after


class PrefixGRU(Module):
    """Domino's recurrence over embeddings of tokens; its names are the names of torch's GRU."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.weight_ih_l0 = Parameter(torch.zeros(3 * config.gru, config.hidden_size))
        self.weight_hh_l0 = Parameter(torch.zeros(3 * config.gru, config.gru))

    def forward(self, embeddings: Tensor, before: Tensor | None) -> Tensor:
        """Returns states `[..., gru]` after tokens with these embeddings; `before` is None at first."""
        width = self.weight_hh_l0.shape[1]
        flat = embeddings.reshape(-1, embeddings.shape[-1])
        known = flat.new_zeros(len(flat), width) if before is None else before.reshape(-1, width)
        after = torch.gru_cell(flat, known, self.weight_ih_l0, self.weight_hh_l0)
        return after.view(*embeddings.shape[:-1], width)


class ConfidenceHead(Module):
    """The confidence that the token of a slot is accepted, if those before it are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = Linear(width, 1)


class BlockHead(Module):
    """A block drafter of the DFlash family.

    It takes the target's embeddings and output head where it brings none. `target_ids` `[proposed]` int64 are
    the target's tokens that its own stand for. `rotation` is undone in features, for a target that was
    rotated after the drafter was trained.

    Source: DFlash (z-lab), JetSpec (arXiv 2606.18394), DSpark (arXiv 2607.05147).
    """

    embed_tokens: Embedding | None
    lm_head: Linear | None
    markov_head: MarkovHead | None
    prefix_gru: PrefixGRU | None
    embed_proj: Sequential | None
    confidence_head: ConfidenceHead | None
    target_ids: Tensor

    def __init__(self, config: BlockConfig, *, target_ids: Tensor | None = None) -> None:
        super().__init__()
        width = config.hidden_size
        self.config = config
        self.rotation: Rotation | None = None
        self.fc = Linear(len(config.taps) * config.feature_width, width, bias=False)
        self.hidden_norm, self.norm = (Norm(width, config.norm_eps) for _ in range(2))
        self.layers = ModuleList(Layer(config) for _ in config.causal)
        self.embed_tokens = Embedding(config.vocab_size, width) if config.own_embedding else None
        self.lm_head = Linear(width, config.proposed, bias=False) if config.own_head else None
        self.markov_head = MarkovHead(config) if config.markov_rank else None
        self.prefix_gru = PrefixGRU(config) if config.gru else None
        self.embed_proj = (
            Sequential(
                Linear(width + config.gru, config.gru_inner, bias=False),
                SiLU(),
                Linear(config.gru_inner, config.proposed, bias=False),
            )
            if config.gru
            else None
        )
        self.confidence_head = ConfidenceHead(config.confidence) if config.confidence else None
        with torch.device("cpu"):  # also where the weights are on none yet
            ids = torch.arange(config.proposed) if target_ids is None else target_ids.long()
            check_target_ids(ids, proposed=config.proposed, vocabulary=config.vocab_size)
            self.all_tokens = is_everything(ids, config.vocab_size)
        self.register_buffer("target_ids", ids, persistent=False)
        self._angles, self._scale = frequencies(
            config.rope, head_dim=config.head_dim, longest=config.max_positions, dtype=torch.float64
        )

    @property
    def max_positions(self) -> int | None:
        """The number of positions that its file names; None where it names none."""
        return self.config.max_positions

    def taps_in(self, layers: int) -> tuple[int, ...]:
        """Returns `config.taps_in(layers)`."""
        return self.config.taps_in(layers)

    def over_target(self, logits: Float[Tensor, "*n proposed"]) -> Float[Tensor, "*n vocab"]:
        """Logits over the target's tokens; -inf where nothing is proposed."""
        if self.all_tokens:
            return logits
        wide = logits.new_full((*logits.shape[:-1], self.config.vocab_size), -torch.inf)
        return wide.index_copy_(-1, self.target_ids, logits)

    @property
    def corrects(self) -> bool:
        """Whether a node's own token changes the logits of its depth."""
        return self.markov_head is not None or self.prefix_gru is not None

    def correction(
        self,
        tokens: Int[Tensor, "*n"],
        embeddings: Float[Tensor, "*n hidden"] | None,
        slots: Float[Tensor, "*n hidden"],
        before: Float[Tensor, "*n state"] | None,
        *,
        depth: int,
    ) -> tuple[Float[Tensor, "*n proposed"], Float[Tensor, "*n state"] | None]:
        """Returns the change of slots' logits by the tokens before them, and the state after them.

        Args:
            tokens: those before the slots.
            embeddings: theirs, of the drafter's table or the target's, which Domino reads.
            slots: their states.
            before: the state before the tokens, of a correction that keeps one; None at its beginning.
            depth: of the tokens below the root, 0 being the root.

        Source: DSpark (arXiv 2607.05147); Domino, as SpecForge trains it.
        """
        if self.prefix_gru is None or self.embed_proj is None:
            assert self.markov_head is not None
            return self.markov_head(tokens, slots, before)  # type: ignore[no-any-return]
        assert embeddings is not None
        after = self.prefix_gru(embeddings, before)
        change: Tensor = self.embed_proj(torch.cat([slots, after], -1))
        return (change if depth >= self.config.gru_from else torch.zeros_like(change)), after

    def confidence(self, tokens: Int[Tensor, "*n"], slots: Float[Tensor, "*n hidden"]) -> Float[Tensor, "*n"]:
        """Returns how sure slots are that their tokens are accepted, given the tokens before them.

        Source: DSpark (arXiv 2607.05147).
        """
        assert self.confidence_head is not None
        if self.config.confidence > self.config.hidden_size:
            assert self.markov_head is not None
            slots = torch.cat([slots, self.markov_head.markov_w1(tokens)], -1)
        sure: Tensor = self.confidence_head.proj(slots).squeeze(-1)
        return torch.sigmoid(sure)

    def project(self, features: Float[Tensor, "*n taps"]) -> Float[Tensor, "*n hidden"]:
        """Returns the projected features of the target, which all layers read."""
        out: Tensor = self.hidden_norm(self.fc(undone(self.rotation, features)))
        return out

    def context(
        self, states: Float[Tensor, "*rows n hidden"], positions: Int[Tensor, " n"] | None = None
    ) -> KeysValues:
        """Keys and values of projected features at these `positions`, on the CPU; None: 0, 1, and so on."""
        turn = self._turn(torch.arange(states.shape[-2]) if positions is None else positions, states)
        return [layer.self_attn.keys_values(states, turn) for layer in self._layers]

    def forward(
        self,
        slots: Float[Tensor, "rows slots hidden"],
        known: KeysValues,
        lengths: Int[Tensor, " rows"],
    ) -> Float[Tensor, "rows slots hidden"]:
        """Returns the slots' states after the last norm.

        Args:
            slots: embeddings of the root and of masks.
            known: of every layer keys and values of the texts, `[rows, longest, key_value_heads, head_dim]`.
            lengths: of the texts, on the CPU.
        """
        count, longest = slots.shape[1], known[0][0].shape[1]
        places = lengths.unsqueeze(1) + torch.arange(count)
        positions = torch.cat([torch.arange(longest).expand(len(slots), -1), places], 1)
        there = torch.cat(
            [torch.arange(longest) < lengths.unsqueeze(1), torch.ones(len(slots), count, dtype=torch.bool)], 1
        )
        back = places.unsqueeze(2) - positions.unsqueeze(1)
        return self.through(slots, places, known=known, back=back, there=there.unsqueeze(1).expand_as(back))

    def through(
        self,
        slots: Float[Tensor, "rows slots hidden"],
        places: Int[Tensor, "#rows slots"],
        *,
        known: KeysValues,
        back: Int[Tensor, "#rows slots seen"],
        there: Bool[Tensor, "#rows slots seen"],
    ) -> Float[Tensor, "rows slots hidden"]:
        """Returns the outputs of the layers for slots, after the last norm.

        Args:
            slots: embeddings.
            places: their positions.
            known: of every layer keys and values of the context, `[rows, n, key_value_heads, head_dim]`; what
                slots see are these and the slots.
            back: how far before a slot each of them is; less than 0: after it.
            there: which of them a slot may see at all. Layers that are causal or have a window hide more.
        """
        turn = self._turn(places, slots)
        states, masks = slots, dict[tuple[bool, int | None], Tensor]()
        for number, (layer, context) in enumerate(zip(self._layers, known, strict=True)):
            kind = self.config.causal[number], self.config.windows[number]
            if kind not in masks:
                seen = self._seen(*kind, back, there).unsqueeze(1)
                masks[kind] = seen.to(states.device, non_blocking=True)
            read = layer.input_layernorm(states)
            keys, values = layer.self_attn.keys_values(read, turn)
            mixed = scaled_dot_product_attention(
                layer.self_attn.queries(read, turn).transpose(1, 2),
                torch.cat([context[0], keys], 1).transpose(1, 2),
                torch.cat([context[1], values], 1).transpose(1, 2),
                attn_mask=masks[kind],
                enable_gqa=True,
            )
            states = states + layer.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
            states = states + layer.mlp(layer.post_attention_layernorm(states))
        out: Tensor = self.norm(states)
        return out

    def _seen(self, causal: bool, window: int | None, back: Tensor, there: Tensor) -> Tensor:
        """Returns which keys a layer sees; arguments as of `through`."""
        if causal:
            there = there & (back >= 0)
        return there if window is None else there & self._inside(window, back)

    def _inside(self, window: int, back: Tensor) -> Tensor:
        """Returns which keys lie in a window, by how far before each slot they are."""
        if not self.config.window_before_root:
            return back < window
        # Slots follow each other from the root on, and the context ends before it.
        count = self.config.block_size
        slot = torch.arange(back.shape[1], device=back.device) % count
        before_root = back - slot.unsqueeze(1)
        return before_root <= window

    @property
    def _layers(self) -> list[Layer]:
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    def _turn(self, positions: Int[Tensor, "*n"], like: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.unsqueeze(-1) * self._angles
        turn = (torch.stack([angles.cos(), angles.sin()]) * self._scale).unsqueeze(-2).to(like.dtype)
        cos, sin = turn.to(like.device, non_blocking=True)
        return cos, sin


def slots_of(
    roots: Float[Tensor, "rows hidden"], mask: Float[Tensor, " hidden"], count: int
) -> Float[Tensor, "rows slots hidden"]:
    """Returns the root's embedding, then the embeddings of masks."""
    masks = pad(mask.view(1, 1, -1).expand(len(roots), count - 1, -1), (0, 0, 1, 0))
    masks[:, 0] = roots
    return masks
