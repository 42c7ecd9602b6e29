"""The families that `widen` knows: their larger shapes, and the places of the old channels in them.

A widened Mamba-2 mixer keeps its groups, each with more heads; B, C and the state stay as they are. Its gated
norm divides by the mean over all channels of a group, so the output of added heads must be zero before it:
their gates' rows of the input projection are zero, and silu(0) = 0. All else in them is random, and computed.
The norm's weight and epsilon are scaled as those over the residual stream are, since both widths grow alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import attrs

from draftwood.base.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["FAMILIES", "Family"]


class Family(ABC):
    """Abstract: how models of one `model_type` widen.

    Attributes:
        widths: in the config, that grow together; the first is that of the residual stream.
        epsilon: in the config, of the norms.
        heads: whether the number of query heads may be chosen.
        deepest: layers that `widen_to` gives a model at most, unless it has more.
        writes: parts of the names of parameters whose outputs reach the residual stream.
    """

    widths: tuple[str, ...]
    epsilon: str
    heads: bool
    deepest: int
    writes: tuple[str, ...]

    @abstractmethod
    def divide(self, model: Any, config: Any, heads: int | None) -> None:
        """Set the numbers of heads, and what else follows from the sizes, in `config`.

        Args:
            model: the small one.
            config: a copy of its config with the new sizes.
            heads: query heads, or None for as many as the width suggests.

        Raises:
            InvalidInput: the sizes do not divide into heads.
        """

    def places(self, name: str, old: Any, new: Any) -> dict[int, Tensor]:
        """Where the entries of the parameter `name` go, by axis; in other axes they lead.

        Args:
            name: of the parameter.
            old: the small model's config.
            new: the large one's.
        """
        return {}

    def silent(self, name: str, new: Any) -> int:
        """Leading rows of the parameter `name` that are zero but for the old entries."""
        return 0


class Llama(Family):
    """Attention and an MLP in every layer."""

    widths = ("hidden_size", "intermediate_size")
    epsilon = "rms_norm_eps"
    heads = True
    deepest = 32
    writes = ("embed_tokens", "o_proj", "down_proj")

    def divide(self, model: Any, config: Any, heads: int | None) -> None:
        """The size of a head, and how many query heads share a key-value head, stay."""
        _divide_attention(model, config, heads)


class Mamba2(Family):
    """A Mamba-2 mixer in every layer: half the parameters of attention and MLP, so twice the layers."""

    widths = ("hidden_size",)
    epsilon = "layer_norm_epsilon"
    heads = False
    deepest = 64
    writes = ("embeddings", "out_proj")

    def divide(self, model: Any, config: Any, heads: int | None) -> None:
        """The size of a head and the number of groups stay."""
        config.num_heads = _mixer(config).heads_of(config.hidden_size, config.expand)

    def places(self, name: str, old: Any, new: Any) -> dict[int, Tensor]:
        """Returns the places of the mixer."""
        return _mixer(new).places(name.partition(".mixer.")[2], _mixer(old).heads)

    def silent(self, name: str, new: Any) -> int:
        """The gates of the mixer."""
        return _mixer(new).inner if ".mixer.in_proj" in name else 0


class Bamba(Family):
    """A Mamba-2 mixer or attention, by turns that go on as they begin, and an MLP in every layer."""

    widths = ("hidden_size", "intermediate_size")
    epsilon = "rms_norm_eps"
    heads = True
    deepest = 32
    writes = ("embed_tokens", "o_proj", "down_proj", "out_proj")

    def divide(self, model: Any, config: Any, heads: int | None) -> None:
        """Divides as `Llama` and `Mamba2` do."""
        config.mamba_n_heads = _bamba_mixer(config).heads_of(config.hidden_size, config.mamba_expand)
        _divide_attention(model, config, heads)
        turns = model.config.num_hidden_layers
        attends = model.config.attn_layer_indices or []
        layers = range(config.num_hidden_layers)
        config.attn_layer_indices = [layer for layer in layers if layer % turns in attends]

    def places(self, name: str, old: Any, new: Any) -> dict[int, Tensor]:
        """Returns the places of the mixers."""
        return _bamba_mixer(new).places(name.partition(".mamba.")[2], _bamba_mixer(old).heads)

    def silent(self, name: str, new: Any) -> int:
        """The gates of the mixers."""
        return _bamba_mixer(new).inner if ".mamba.in_proj" in name else 0


FAMILIES: dict[str, Family] = {"bamba": Bamba(), "llama": Llama(), "mamba2": Mamba2()}


def _divide_attention(model: Any, config: Any, heads: int | None) -> None:
    old = model.config
    group = old.num_attention_heads // old.num_key_value_heads
    if heads is None:
        heads = group * (old.num_key_value_heads * config.hidden_size // old.hidden_size)
    if heads % group:
        raise InvalidInput(
            f"num_attention_heads={heads} is not a multiple of {group}, the number of query heads "
            "that share a key-value head; give a multiple"
        )
    config.head_dim = getattr(old, "head_dim", None) or old.hidden_size // old.num_attention_heads
    config.num_attention_heads = heads
    config.num_key_value_heads = heads // group


@attrs.frozen
class _Mixer:
    """The shape of a Mamba-2 mixer: heads in groups that share B and C, each of `state` channels."""

    heads: int
    groups: int
    dim: int
    state: int

    @property
    def inner(self) -> int:
        return self.heads * self.dim

    def heads_of(self, width: int, expand: int) -> int:
        """Returns the number of heads for a residual stream of `width`."""
        heads, rest = divmod(expand * width, self.dim)
        if rest or heads % self.groups:
            unit = self.dim * self.groups
            unit //= math.gcd(unit, expand)
            raise InvalidInput(f"hidden_size={width} does not divide into heads; give a multiple of {unit}")
        return heads

    def places(self, part: str, heads: int) -> dict[int, Tensor]:
        """Where the entries of a parameter of the mixer with `heads` heads go; they lead in every group."""
        import torch

        head = torch.arange(self.heads).view(self.groups, -1)[:, : heads // self.groups].flatten()
        channel = (head.unsqueeze(1) * self.dim + torch.arange(self.dim)).flatten()
        # Queries and keys, of which there are no more than before.
        shared = self.inner + torch.arange(2 * self.groups * self.state)
        convolved = torch.cat([channel, shared])
        steps = 2 * self.inner + len(shared) + head
        rows = {
            "A_log": head,
            "D": head,
            "dt_bias": head,
            "norm": channel,
            "conv1d": convolved,
            "in_proj": torch.cat([channel, self.inner + convolved, steps]),
        }
        name, _, kind = part.partition(".")
        if name == "out_proj" and kind == "weight":
            return {1: channel}
        return {0: rows[name]} if name in rows else {}


def _mixer(config: Any) -> _Mixer:
    return _Mixer(config.num_heads, config.n_groups, config.head_dim, config.state_size)


def _bamba_mixer(config: Any) -> _Mixer:
    return _Mixer(config.mamba_n_heads, config.mamba_n_groups, config.mamba_d_head, config.mamba_d_state)
