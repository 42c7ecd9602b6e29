"""The EAGLE-3 head: decoder layers over a token's embedding and a state."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import Embedding, Linear, Module, ModuleList

from draftwood import InvalidInput
from draftwood.strategies.heads.config import Eagle3Config
from draftwood.strategies.heads.layers import FirstLayer, PlainLayer, RMSNorm, Turn
from draftwood.strategies.heads.pairs import HeadsAndWidth, PairAttention
from draftwood.strategies.heads.rope import frequencies, rotated
from draftwood.strategies.heads.rotation import Rotation, undone
from draftwood.strategies.heads.vocabulary import check_target_ids, is_everything


class Eagle3Head(Module):
    """An EAGLE-3 head with the parameters of `config`, to be loaded or trained.

    A *pair* is a token and a state: of the committed text, token i + 1 and what `project` makes of the
    target's features of token i; below the root, a drafted token and what was recycled at its parent. `step`
    makes of pairs states, whose `logits` say which token follows.

    Parameters have the names of SafeAILab's files. `target_ids` `[draft_vocab_size]` int64 are the target's
    tokens that the head's own stand for. `rotation` is undone in features, for a target that was rotated
    after the head was trained.

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
        self.midlayer = FirstLayer(config)
        self.more = ModuleList(PlainLayer(config) for _ in range(config.layers - 1))
        self.norm = RMSNorm(width, config.norm_eps)
        self.lm_head = Linear(width, config.draft_vocab_size, bias=False) if config.own_head else None
        # No module of this one: the target's output head is the target's.
        self.lent: list[Callable[[Tensor], Tensor]] = []
        self.rotation: Rotation | None = None
        self.embed_tokens = Embedding(config.vocab_size, width) if config.own_embedding else None
        self.input_norm = RMSNorm(features, config.norm_eps) if config.norm_before_fc else None
        self.fc_norm = (
            ModuleList(RMSNorm(config.target_hidden_size, config.norm_eps) for _ in range(config.tap_count))
            if config.fc_norm
            else None
        )
        with torch.device("cpu"):  # also where the weights are on none yet
            self.inverse, self.rope_scale = frequencies(
                config.rope, head_dim=config.rotated_dim, longest=config.max_positions
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
        return self.config.kept

    @property
    def text_attends(self) -> bool:
        """Whether what is kept of a pair depends on the pairs before it: it has several layers."""
        return self.config.layers > 1

    @property
    def max_positions(self) -> int | None:
        """The number of positions that its file names; None where it names none."""
        return self.config.max_positions

    def taps_in(self, layers: int) -> tuple[int, ...]:
        """Returns `config.taps_in(layers)`."""
        return self.config.taps_in(layers)

    def project(self, features: Tensor) -> Tensor:
        """States `[..., hidden_size]` of the target's features `[..., taps * target_hidden_size]`."""
        features = undone(self.rotation, features)
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.chunk(len(self.fc_norm), -1)
            features = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], -1)
        states: Tensor = self.fc(features)
        return states

    def step(self, embeddings: Tensor, states: Tensor, positions: Tensor, attention: PairAttention) -> Tensor:
        """Returns the last layer's outputs for pairs; see `PairHead.step`."""
        turn = self.turn(positions)
        out: Tensor = self.midlayer(embeddings, states, turn, attention)
        for number, layer in enumerate(self.more, 1):
            out = layer(out, turn, attention, number=number)
        return out

    def keys_values(self, embeddings: Tensor, states: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the rotated keys, and values, of pairs in the first layer; see `PairHead.keys_values`."""
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
                "The head has no output head yet; call borrow() with its target's output_head first."
            )
        return self.lent[0](states)

    def borrow(self, output: Callable[[Tensor], Tensor]) -> None:
        """Use the target's output head, from states to logits, where the file has none."""
        self.lent = [output]

    def target_logits(self, out: Tensor) -> Tensor:
        """Returns logits over the target's tokens `[..., vocab_size]`, -inf for those never proposed."""
        logits = self.logits(out)
        if self.all_tokens:
            return logits
        wide = logits.new_full((*logits.shape[:-1], self.config.vocab_size), -torch.inf)
        return wide.index_copy_(-1, self.target_ids, logits)

    def recycled(self, out: Tensor) -> Tensor:
        """Returns the state that a token drafted after `out` is paired with."""
        states: Tensor = self.norm(out) if self.config.norm_output else out
        return states
