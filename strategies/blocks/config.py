"""The configuration of a block drafter: sizes and switches, whatever file they came from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from draftwood import InvalidInput
from draftwood.strategies.heads.config import before_norm
from draftwood.strategies.heads.sizes import check_guesses

SLIDING, FULL = "sliding_attention", "full_attention"
Markov = Literal["vanilla", "gated", "rnn"]
MARKOV: tuple[Markov, ...] = ("vanilla", "gated", "rnn")


@attrs.frozen(kw_only=True)
class BlockConfig:
    """A block drafter.

    Attributes:
        vocab_size: tokens of the target.
        draft_vocab_size: tokens that it can propose; None: all.
        hidden_size: width, which is its target's unless `target_hidden_size` says otherwise.
        target_hidden_size: width of the target's features; None: `hidden_size`, as in all files.
        target_layers: decoder layers of the target; None where its file does not say.
        taps: which features of the target it reads, as `StateBackend.keep_features` counts.
        block_size: slots of a block, the root's among them.
        mask_token_id: the token in the slots after the root.
        causal: by layer, whether a slot sees no later slots.
        windows: by layer, how many positions back a slot sees, its own included; None: all.
        window_before_root: windows are counted from the root for all slots, its position not included, and
            hide no slots.
        rope: the rotation, as transformers' `rope_parameters`.
        attention_bias: queries, keys and values have a bias.
        output_bias: the projection after attention has one.
        root_guesses: the root's slot guesses a token, and each slot the token after its position; else
            each slot guesses its own position.
        own_embedding: it brings its own table of words; else the target's is used.
        own_head: it brings an output head; else the target's is used.
        markov_rank: of the correction by the token before; 0: there is none.
        markov_type: of the correction: by only that token, gated by the slot's state, or by a state that all
            tokens before have made.
        gru: width of the state of Domino's correction by all tokens before; 0: there is none.
        gru_inner: width of what that correction makes of a slot and the state.
        gru_from: guesses of a block that it leaves as they are, the first ones.
        confidence: inputs of the head that says how sure a slot is; 0: there is none.
    """

    vocab_size: int
    draft_vocab_size: int | None = None
    hidden_size: int
    target_hidden_size: int | None = None
    intermediate_size: int
    attention_heads: int
    key_value_heads: int
    head_dim: int
    norm_eps: float
    max_positions: int
    target_layers: int | None
    taps: tuple[int, ...]
    block_size: int
    mask_token_id: int
    causal: tuple[bool, ...]
    windows: tuple[int | None, ...]
    window_before_root: bool = False
    rope: Mapping[str, Any]
    attention_bias: bool = False
    output_bias: bool = False
    root_guesses: bool = False
    own_embedding: bool = False
    own_head: bool = False
    markov_rank: int = 0
    markov_type: Markov = "vanilla"
    gru: int = 0
    gru_inner: int = 0
    gru_from: int = 0
    confidence: int = 0

    def __attrs_post_init__(self) -> None:
        check_guesses("block_size", self.block_size)
        if self.attention_heads % self.key_value_heads:
            raise InvalidInput(
                f"The block drafter has {self.attention_heads} query heads and {self.key_value_heads} of "
                "keys, which do not divide them; copy its description again."
            )
        if self.proposed > self.vocab_size:
            raise InvalidInput(
                f"The block drafter proposes {self.proposed} tokens and its target has {self.vocab_size}; "
                "one of the two in its config is wrong; copy it again."
            )
        if self.proposed < self.vocab_size and not self.own_head:
            raise InvalidInput(
                f"The block drafter proposes {self.proposed} of {self.vocab_size} tokens and has no separate "
                "output head, lm_head.weight; copy it again."
            )
        if self.feature_width != self.hidden_size and not (self.own_embedding and self.own_head):
            raise InvalidInput(
                f"The block drafter's width is {self.hidden_size} and its target's {self.feature_width}, so "
                "it needs a table of words and an output head; give it both."
            )
        if self.gru and self.markov_rank:
            raise InvalidInput(
                "The block drafter has the corrections of Domino and of DSpark, which exclude each other; "
                "its config is wrong in one of them."
            )
        if self.depths < 1:
            raise InvalidInput(
                f"block_size is {self.block_size}, so that nothing is guessed; give 2 or more."
            )

    @property
    def sizes(self) -> dict[str, int]:
        """The dimensions of the weights, or parts of them, by the names of descriptions."""
        own = {"draft_vocab_size": self.proposed} if self.own_head else {}
        return {
            "hidden_size": self.hidden_size,
            "target_hidden_size": self.feature_width,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.attention_heads,
            "num_key_value_heads": self.key_value_heads,
            "head_dim": self.head_dim,
            "markov_rank": self.markov_rank,
            "gru_hidden_dim": self.gru,
            "emb_dim": self.gru_inner,
            **own,
        }

    @property
    def recurrent(self) -> int:
        """Width of the state that a correction keeps of all tokens before; 0: it keeps none."""
        return self.gru or self.markov_rank * (self.markov_type == "rnn")

    @property
    def depths(self) -> int:
        """Tokens that a block guesses."""
        return self.block_size if self.root_guesses else self.block_size - 1

    @property
    def feature_width(self) -> int:
        """Width of the target's features."""
        return self.target_hidden_size or self.hidden_size

    @property
    def proposed(self) -> int:
        """Tokens that it can propose."""
        return self.vocab_size if self.draft_vocab_size is None else self.draft_vocab_size

    def taps_in(self, layers: int) -> tuple[int, ...]:
        """Returns the taps in a target of `layers` layers, as `keep_features` counts them.

        Raises:
            InvalidInput: it was made for another number of them, or taps one that the target does not have.
        """
        if self.target_layers not in (None, layers):
            raise InvalidInput(
                f"The block drafter was made for a target of {self.target_layers} layers, and this one has "
                f"{layers}; choose one made for it."
            )
        if not all(0 <= tap <= layers for tap in self.taps):
            raise InvalidInput(
                f"The block drafter taps the layers {', '.join(map(str, self.taps))} of its target, as "
                f"inputs counted from 0, but this target has {layers}, 0 to {layers}; choose one made "
                "for it."
            )
        return before_norm(self.taps, layers)
