"""The configuration of an EAGLE-3 head: sizes and switches, whatever file they came from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from draftwood import InvalidInput
from draftwood.base.validators import at_least
from draftwood.strategies.heads.rope import ROPE_TYPES


def _as_taps(taps: Iterable[int] | None) -> tuple[int, ...] | None:
    """Ascending, as every engine concatenates them."""
    return None if taps is None else tuple(sorted(int(tap) for tap in taps))


def before_norm(taps: Iterable[int], layers: int) -> tuple[int, ...]:
    """Returns taps as `keep_features` counts: heads read the last layer's output before the final norm."""
    return tuple(layers + 1 if tap == layers else tap for tap in taps)


@attrs.frozen(kw_only=True)
class Latent:
    """Sizes of latent attention (DeepSeek-V2, section 2.1).

    Attributes:
        query_rank: width of the narrow state that queries are made of; None: they are made directly.
        rank: width of the narrow state that keys and values are made of.
        plain_dim: numbers of a query or key that are not rotated.
        rope_dim: numbers that are.
        value_dim: of a value.
        interleaved: neighbouring numbers turn together, rather than those half of `rope_dim` apart.
    """

    query_rank: int | None = attrs.field(default=None, validator=attrs.validators.optional(at_least(1)))
    rank: int = attrs.field(validator=at_least(1))
    plain_dim: int = attrs.field(validator=at_least(0))
    rope_dim: int = attrs.field(validator=at_least(2))
    value_dim: int = attrs.field(validator=at_least(1))
    interleaved: bool = True

    @property
    def key_dim(self) -> int:
        """Numbers of a query or key."""
        return self.plain_dim + self.rope_dim


def latent_keys(latent: Latent) -> dict[str, int]:
    """Returns the sizes of latent attention by the keys of descriptions."""
    queries = {} if latent.query_rank is None else {"q_lora_rank": latent.query_rank}
    return {
        **queries,
        "kv_lora_rank": latent.rank,
        "qk_nope_head_dim": latent.plain_dim,
        "qk_rope_head_dim": latent.rope_dim,
        "v_head_dim": latent.value_dim,
    }


@attrs.frozen(kw_only=True)
class Eagle3Config:
    """Sizes and switches of an EAGLE-3 head.

    Attributes:
        hidden_size: width H of the head.
        target_hidden_size: width of the target's features.
        vocab_size: tokens of the target.
        draft_vocab_size: tokens that the head can propose.
        attention_heads: of queries.
        key_value_heads: of keys and values; divides `attention_heads`.
        head_dim: of each.
        intermediate_size: of the MLP.
        layers: decoder layers; those after the first are ordinary ones.
        latent: sizes of latent attention, which then replaces `key_value_heads` and `head_dim`.
        norm_eps: of all RMS norms.
        rope: transformers' `rope_parameters`.
        max_positions: what its file says it was made for; None where it does not say.
        taps: the target's layers whose input is read, as transformers' `hidden_states` counts them; None for
            the usual ones of L layers: 2, L // 2 and L - 3.
        norm_before_residual: the residual is the normed state rather than the state itself.
        norm_before_fc: one norm on the concatenated features before they are projected.
        fc_norm: one norm a tap instead.
        norm_output: the state recycled for the next depth is taken after the last norm, not before it.
        query_key_norm: norms on queries and keys, a head each, as Qwen3 has them.
        attention_bias: queries, keys and values have a bias.
        output_bias: what attention puts out has one.
        own_embedding: it brings its own table of words; else the target's is used.
        own_head: it brings an output head; else the target's is used.
    """

    hidden_size: int = attrs.field(validator=at_least(1))
    target_hidden_size: int = attrs.field(validator=at_least(1))
    vocab_size: int = attrs.field(validator=at_least(1))
    draft_vocab_size: int = attrs.field(validator=at_least(1))
    attention_heads: int = attrs.field(validator=at_least(1))
    key_value_heads: int = attrs.field(validator=at_least(1))
    head_dim: int = attrs.field(validator=at_least(2))
    intermediate_size: int = attrs.field(validator=at_least(1))
    layers: int = attrs.field(default=1, validator=at_least(1))
    latent: Latent | None = None
    norm_eps: float = 1e-6
    rope: Mapping[str, Any] = attrs.field(factory=lambda: {"rope_type": "default", "rope_theta": 10000.0})
    max_positions: int | None = None
    taps: tuple[int, ...] | None = attrs.field(default=None, converter=_as_taps)
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    query_key_norm: bool = False
    attention_bias: bool = False
    output_bias: bool = False
    own_embedding: bool = False
    own_head: bool = True

    def __attrs_post_init__(self) -> None:
        if self.attention_heads % self.key_value_heads:
            raise InvalidInput(
                f"The head has {self.attention_heads} query heads and {self.key_value_heads} of keys, which "
                "do not divide them; copy its description again."
            )
        if self.rotated_dim % 2:
            raise InvalidInput(f"The head's head_dim is {self.rotated_dim}; a rotation needs an even one.")
        if self.latent is not None and (self.attention_bias or self.query_key_norm or self.output_bias):
            raise InvalidInput(
                "The head has latent attention, and biases or norms of queries and keys as well; its config "
                "is wrong in one of them."
            )
        if self.norm_before_fc and self.fc_norm:
            raise InvalidInput(
                "The head has norm_before_fc and fc_norm, which exclude each other; its config is wrong in "
                "one of them."
            )
        if self.draft_vocab_size > self.vocab_size:
            raise InvalidInput(
                f"The head proposes {self.draft_vocab_size} tokens and its target has {self.vocab_size}; one "
                "of the two in its config is wrong; copy it again."
            )
        if not self.own_embedding and self.hidden_size != self.target_hidden_size:
            raise InvalidInput(
                f"The head's width is {self.hidden_size} and its target's {self.target_hidden_size}, so it "
                "needs a separate embedding, embed_tokens.weight, which is missing; copy it again."
            )
        if not self.own_head and (self.hidden_size, self.draft_vocab_size) != (
            self.target_hidden_size,
            self.vocab_size,
        ):
            raise InvalidInput(
                f"The head's width is {self.hidden_size} and it proposes {self.draft_vocab_size} tokens, so "
                "it needs a separate output head, lm_head.weight, which is missing; copy it again."
            )
        if self.taps is not None and not self.taps:
            raise InvalidInput("The head's config names no layer of its target; copy it again.")
        if (kind := self.rope.get("rope_type", "default")) not in ROPE_TYPES:
            raise InvalidInput(
                f"The head's rotation is {kind!r}, which changes as a text grows or is not known; heads with "
                f"{', '.join(ROPE_TYPES)} are read."
            )

    @property
    def sizes(self) -> dict[str, int]:
        """The dimensions of the weights, or parts of them, by the names of descriptions."""
        return {
            "hidden_size": self.hidden_size,
            "target_hidden_size": self.target_hidden_size,
            "draft_vocab_size": self.draft_vocab_size,
            "num_attention_heads": self.attention_heads,
            "num_key_value_heads": self.key_value_heads,
            "head_dim": self.rotated_dim,
            "intermediate_size": self.intermediate_size,
            **({} if self.latent is None else latent_keys(self.latent)),
        }

    @property
    def rotated_dim(self) -> int:
        """Numbers of a query or key that a whole rotation turns."""
        return self.head_dim if self.latent is None else self.latent.rope_dim

    @property
    def kept(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Keys and values that are kept of a pair in all layers: how many, and how wide."""
        if self.latent is None:
            each = self.layers * self.key_value_heads, self.head_dim
            return each, each
        count = self.layers * self.attention_heads
        return (count, self.latent.key_dim), (count, self.latent.value_dim)

    @property
    def tap_count(self) -> int:
        return 3 if self.taps is None else len(self.taps)

    def named_taps(self, layers: int) -> tuple[int, ...]:
        """Returns the taps as files name them: after how many of `layers` layers."""
        return self.taps or _as_taps((2, layers // 2, layers - 3)) or ()

    def taps_in(self, layers: int) -> tuple[int, ...]:
        """Returns the layers that are tapped in a target of `layers` layers, as `keep_features` counts them.

        Raises:
            InvalidInput: one that the target does not have.
        """
        taps = self.named_taps(layers)
        if not all(0 <= tap <= layers for tap in taps):
            raise InvalidInput(
                f"The head taps the layers {', '.join(map(str, taps))} of its target, as inputs counted from "
                f"0, but this target has {layers}, 0 to {layers}; it was made for another, or name "
                "others with `taps`."
            )
        return before_norm(taps, layers)
