"""A head for a widened target, which drafts there what it drafts for the narrow one.

A widened target's residual stream holds the narrow one's in its first channels, unscaled, and zeros in all
others (`zoo.widen`); its layers have the narrow ones' numbers, and added ones come after them. So a head's
taps stay, its projection gets columns of zeros, and norms over features are scaled as the target's own are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor
from torch.nn import Module

from draftwood.base.errors import IncompatibleModels, UnsupportedModel
from draftwood.strategies.blocks.head import BlockHead
from draftwood.strategies.heads.eagle3 import Eagle3Head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["widened_head"]


def widened_head(head: Module, narrow: PreTrainedModel, wide: PreTrainedModel) -> Eagle3Head | BlockHead:
    """A head whose logits on `wide` equal the logits of `head` on `narrow`, up to rounding.

    All but its projection is as small as in `head`: a real head for a target of that width is about as wide
    as its target, and costs more. So `parameter_count` of both belongs to every time that is taken of it.

    Args:
        head: an EAGLE-3 head or a block drafter for `narrow`; it is not changed, and shares weights with the
            result.
        narrow: the model that it was made for, whose table of words the result brings, and of a block drafter
            the output head, where `head` borrows them.
        wide: what `zoo.widen.widen` or `widen_to` made of `narrow`.

    Raises:
        UnsupportedModel: another kind of head. An MTP layer reads its own states through the very projection
            that reads the target's, so it is as wide as its target.
        IncompatibleModels: `head` was made for another width than that of `narrow`, or `wide` is no larger
            shape of `narrow`.
    """
    if not isinstance(head, Eagle3Head | BlockHead):
        raise UnsupportedModel(
            f"{type(head).__name__} reads its own states as it reads its target's, so it must be as wide as "
            "its target; give an EAGLE-3 head or a block drafter."
        )
    old, new = narrow.config, wide.config
    kept = old.model_type == new.model_type and old.vocab_size == new.vocab_size
    if not kept or new.hidden_size < old.hidden_size or new.num_hidden_layers < old.num_hidden_layers:
        raise IncompatibleModels(
            f"A {new.model_type!r} of width {new.hidden_size} is no larger shape of a {old.model_type!r} of "
            f"width {old.hidden_size}; give what draftwood.zoo.widen made of it."
        )
    if isinstance(head, BlockHead):
        reads, layers = head.config.feature_width, head.config.target_layers
    else:
        reads, layers = head.config.target_hidden_size, None
    if reads != old.hidden_size:
        raise IncompatibleModels(
            f"The head was made for features of width {reads}, but the narrow target's is {old.hidden_size}; "
            "give the target that it was made for."
        )
    weights = dict(head.state_dict())
    weights["fc.weight"] = _padded(weights["fc.weight"], reads, new.hidden_size)
    weights.setdefault("embed_tokens.weight", _like(narrow.get_input_embeddings(), head.fc.weight))
    changes: dict[str, Any] = {
        "target_hidden_size": new.hidden_size,
        "taps": head.taps_in(old.num_hidden_layers),
        "own_embedding": True,
    }
    if isinstance(head, BlockHead):
        weights.setdefault("lm_head.weight", _like(narrow.get_output_embeddings(), head.fc.weight))
        changes |= {"target_layers": layers and new.num_hidden_layers, "own_head": True}
    factor = math.sqrt(reads / new.hidden_size)
    norms = [name for name in weights if name.startswith(("input_norm.", "fc_norm."))]
    weights |= {name: _padded(weights[name], reads, new.hidden_size) * factor for name in norms}
    with torch.device("meta"):
        config: Any = attrs.evolve(head.config, **changes)
        widened = type(head)(config, target_ids=head.target_ids.cpu())
    widened.load_state_dict(weights, assign=True)
    for name in norms:
        norm: Any = widened.get_submodule(name.removesuffix(".weight"))
        norm.eps *= factor**2
    return widened.to(head.fc.weight).eval().requires_grad_(False)


def _padded(weight: Tensor, old: int, new: int) -> Tensor:
    """`weight` `[..., taps * old]` as `[..., taps * new]`, with zeros after the channels of every tap."""
    taps = weight.unflatten(-1, (-1, old))
    return torch.nn.functional.pad(taps, (0, new - old)).flatten(-2)


def _like(module: Any, weight: Tensor) -> Tensor:
    own: Tensor = module.weight.detach()
    return own.to(weight)
