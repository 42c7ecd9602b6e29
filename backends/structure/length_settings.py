"""Settings of a model that depend on a text's length, and copies in which they do so within a few tokens.

Windows, chunks, scales and switches of a rotation begin at hundreds or thousands of tokens, where no cheap
check looks. A copy over the same weights whose settings are small shows what happens beyond them.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from draftwood.backends.structure.context import ORIGINAL_LENGTH, longrope_switch, recomputes_at_switch
from draftwood.backends.structure.forward import plain_logits
from draftwood.backends.structure.layers import shared_copy

SMALL = 8
"""What the settings become in a copy."""

MOST_TOKENS = 512
"""How many tokens a check reads at most, beyond a setting that cannot be changed."""

SETTINGS = re.compile(
    r"window(_size|_len)?$|chunk_size$|floor|index_topk$|budget$|original_max_position|extent$|^local_attention$"
    r"|block_size$"
)
"""Names of settings that may say from where on a model treats a text otherwise."""


def length_settings(model: Any, *, above: int) -> dict[str, int]:
    """The settings of the part that writes text that name more than `above` tokens, with their values."""
    text = model.config.get_text_config(decoder=True)
    settings = {name: value for name, value in vars(text).items() if SETTINGS.search(name)}
    for rope in _rope_parameters(text):
        settings[ORIGINAL_LENGTH] = rope.get(ORIGINAL_LENGTH)
    if longrope_switch(text) is not None and not recomputes_at_switch(model):
        # No backend goes beyond it.
        settings.pop(ORIGINAL_LENGTH, None)
    return {
        name: value
        for name, value in settings.items()
        if isinstance(value, int) and not isinstance(value, bool) and value > above
    }


def with_small_settings(model: Any, names: list[str]) -> Any:
    """A copy of `model` over the same weights in which the settings of these names are `SMALL`."""
    copy = shared_copy(model)
    text = copy.config.get_text_config(decoder=True)
    old = length_settings(model, above=SMALL)
    for name in names:
        if name in vars(text):
            vars(text)[name] = SMALL
    for rope in _rope_parameters(text):
        if ORIGINAL_LENGTH in names and ORIGINAL_LENGTH in rope:
            rope[ORIGINAL_LENGTH] = SMALL
    for module in copy.modules():
        for name in names:
            if vars(module).get(name) == old.get(name):
                vars(module)[name] = SMALL
    return copy


def unused_settings(model: Any, names: list[str], text: list[int]) -> list[str]:
    """Returns the settings that change none of the logits of `text`, which is longer than `SMALL`.

    The model does not use them, or used them when it was built.
    """
    before = plain_logits(model, text)
    return [
        name for name in names if torch.equal(before, plain_logits(with_small_settings(model, [name]), text))
    ]


def _rope_parameters(text: Any) -> list[dict[str, Any]]:
    rope = getattr(text, "rope_parameters", None)
    if not isinstance(rope, dict):
        return []
    return [rope, *(value for value in rope.values() if isinstance(value, dict))]
