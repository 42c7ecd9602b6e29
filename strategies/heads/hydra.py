"""Hydra heads: MLPs over a state of the target and the words drafted after it, one for each depth."""

from __future__ import annotations

from typing import Any, cast

import attrs
import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleList
from torch.nn.functional import pad, silu

from draftwood import InvalidInput
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.layers import PlainLayer, RMSNorm, Turn
from draftwood.strategies.heads.pairs import HeadsAndWidth, PairAttention
from draftwood.strategies.heads.rope import frequencies, rotated
from draftwood.strategies.heads.rotation import Rotation


@attrs.frozen(kw_only=True)
class HydraConfig:
    """Sizes of Hydra heads.

    Attributes:
        hidden_size: of the target.
        vocab_size: likewise.
        heads: how many tokens in a row they guess.
        blocks: residual blocks of each.
        output_bias: their output heads have a bias.
        offset: layers after the one whose output is read; 0: what the target's output head reads.
        prefix: the layer that reads the target's states before the heads do; None where there is none.
    """

    hidden_size: int
    vocab_size: int
    heads: int
    blocks: int
    output_bias: bool = False
    offset: int = 0
    prefix: Eagle3Config | None = None


class Block(Module):
    """A residual block; the first of a head reads a state and `words` embeddings, and projects them."""

    def __init__(self, width: int, words: int = 0) -> None:
        super().__init__()
        self.linear = Linear(width * (words + 1), width)
        self.res_connection = Linear(width * (words + 1), width) if words else None

    def forward(self, states: Tensor) -> Tensor:
        kept: Tensor = states if self.res_connection is None else self.res_connection(states)
        return kept + silu(self.linear(states))


class HydraHead(Module):
    """Hydra heads as a head over pairs.

    A drafted token's state holds, in this order, the target's state before the root, the embeddings of the
    root and of the drafted tokens up to this one, zeros for further ones, and its depth, 1 being the root's
    children's. So head k, counted from 0, guesses a token whose path has k tokens below the root.

    Source: Hydra (arXiv 2402.05109), sections 3 and 4, with its prefix attention.
    """

    all_tokens = True
    """They propose all tokens of their target."""
    text_attends = False
    max_positions: int | None = None
    embed_tokens: Any = None
    rotation: Rotation | None = None

    def __init__(self, config: HydraConfig) -> None:
        super().__init__()
        self.config, width = config, config.hidden_size
        self.prefix = PlainLayer(config.prefix) if config.prefix else None
        self.norm = RMSNorm(width, config.prefix.norm_eps) if config.prefix else None
        self.heads = ModuleList(
            ModuleList([Block(width, words=number + 1), *(Block(width) for _ in range(config.blocks - 1))])
            for number in range(config.heads)
        )
        self.outputs = ModuleList(
            Linear(width, config.vocab_size, bias=config.output_bias) for _ in range(config.heads)
        )
        if config.prefix is not None:
            with torch.device("cpu"):  # also where the weights are on none yet
                self.inverse, self.rope_scale = frequencies(
                    config.prefix.rope, head_dim=config.prefix.head_dim, longest=config.prefix.max_positions
                )

    @property
    def width(self) -> int:
        return (self.config.heads + 1) * self.config.hidden_size + 1

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def like(self) -> Tensor:
        weight: Any = self.outputs[0].weight
        return weight.detach()  # type: ignore[no-any-return]

    @property
    def kept(self) -> tuple[HeadsAndWidth, HeadsAndWidth]:
        # Without a layer that attends, a slot holds one number that nobody reads.
        return ((1, 1), (1, 1)) if self.config.prefix is None else self.config.prefix.kept

    def taps_in(self, layers: int) -> tuple[int, ...]:
        """Returns the layer whose features are read, of a target of `layers` layers.

        Raises:
            InvalidInput: one that the target does not have.
        """
        if self.config.offset > layers:
            raise InvalidInput(
                f"hidden_state_offset of the Hydra heads is {self.config.offset}, and their target has "
                f"{layers} layers; use the target that they were made for."
            )
        return (layers - self.config.offset,)

    def project(self, features: Tensor) -> Tensor:
        """States `[..., width]` of the target's features `[..., hidden_size]`."""
        return pad(features, (0, self.width - self.config.hidden_size))

    def step(self, embeddings: Tensor, states: Tensor, positions: Tensor, attention: PairAttention) -> Tensor:
        """Returns the states that hold these tokens as well; see `PairHead.step`."""
        width = self.config.hidden_size
        read, words, depth = states.split([width, self.config.heads * width, 1], -1)
        if self.prefix is not None and self.norm is not None:
            made = self.norm(self.prefix(read, self._turn(positions), attention, number=0))
            # Drafted tokens go on from what their root's pair read.
            read = torch.where(depth > 0, read, made)
        words = words.unflatten(-1, (self.config.heads, width))
        here = torch.arange(self.config.heads, device=depth.device) == depth
        words = torch.where(here.unsqueeze(-1), embeddings.unsqueeze(-2), words)
        return torch.cat([read, words.flatten(-2), depth + 1], -1)

    def keys_values(self, embeddings: Tensor, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the keys and values that the first layer keeps of pairs; see `PairHead.keys_values`."""
        if self.prefix is None:
            blank = states.new_zeros(*states.shape[:2], 1, 1)
            return blank, blank
        read = self.prefix.input_layernorm(states[..., : self.config.hidden_size])
        return self.prefix.self_attn.keys_values(read, self._turn(positions))

    def logits(self, out: Tensor) -> Tensor:
        """Logits `[..., vocab_size]` of what `step` gave; -inf below the last head."""
        depths = out[..., -1]
        logits = out.new_full((*depths.shape, self.vocab_size), -torch.inf)
        # Each depth has its own output head: reading the depths back costs one wait, all heads far more.
        for depth in depths.unique().tolist():
            number = int(depth) - 1
            if 0 <= number < self.config.heads:
                here = depths == depth
                states = out[here][:, : (number + 2) * self.config.hidden_size]
                for block in cast(ModuleList, self.heads[number]):
                    states = block(states)
                logits[here] = self.outputs[number](states)
        return logits

    def target_logits(self, out: Tensor) -> Tensor:
        """Returns `logits(out)`."""
        return self.logits(out)

    def recycled(self, out: Tensor) -> Tensor:
        """Returns `out` as it is."""
        return out

    def _turn(self, positions: Tensor) -> Turn:
        inverse = self.inverse.to(positions.device)
        return lambda some: rotated(some, positions, inverse, self.rope_scale)
