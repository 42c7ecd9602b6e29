"""What in a model depends on a text's length, and copies in which it does so within a few tokens.

Windows, chunks, scales and switches of a rotation begin at hundreds or thousands of tokens, where no cheap
check looks. A copy over the same weights whose numbers are small shows what happens beyond them.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from draftwood.backends.context import SWITCH, reads_again_at_switch, switch_of_rotation
from draftwood.backends.forward import plain_logits
from draftwood.backends.layers import shared_copy

NEAR, FAR = 8, 512
"""What the numbers become; and how many tokens a check reads at most, beyond one that cannot be changed."""

NAMES = re.compile(
    r"window(_size|_len)?$|chunk_size$|floor|index_topk$|budget$|original_max_position|extent$|^local_attention$"
    r"|block_size$"
)
"""Of settings that may say from where on a model treats a text otherwise."""


def numbers(model: Any, *, above: int) -> dict[str, int]:
    """The settings of the part that writes text that name more than `above` tokens, with their values."""
    text = model.config.get_text_config(decoder=True)
    found = {name: value for name, value in vars(text).items() if NAMES.search(name)}
    for rotation in _rotations(text):
        found[SWITCH] = rotation.get(SWITCH)
    if switch_of_rotation(text) is not None and not reads_again_at_switch(model):
        # No backend goes beyond it.
        found.pop(SWITCH, None)
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int) and not isinstance(value, bool) and value > above
    }


def nearer(model: Any, names: list[str]) -> Any:
    """A copy of `model` over the same weights in which the numbers of these names are `NEAR`."""
    found = shared_copy(model)
    text = found.config.get_text_config(decoder=True)
    old = numbers(model, above=NEAR)
    for name in names:
        if name in vars(text):
            vars(text)[name] = NEAR
    for rotation in _rotations(text):
        if SWITCH in names and SWITCH in rotation:
            rotation[SWITCH] = NEAR
    for module in found.modules():
        for name in names:
            if vars(module).get(name) == old.get(name):
                vars(module)[name] = NEAR
    return found


def idle(model: Any, names: list[str], text: list[int]) -> list[str]:
    """Those of these numbers whose change changes nothing in what `model` says of `text`, longer than `NEAR`.

    They are of no use to the model, or were used when it was built.
    """
    before = plain_logits(model, text)
    return [name for name in names if torch.equal(before, plain_logits(nearer(model, [name]), text))]


def _rotations(text: Any) -> list[dict[str, Any]]:
    given = getattr(text, "rope_parameters", None)
    if not isinstance(given, dict):
        return []
    return [given, *(value for value in given.values() if isinstance(value, dict))]
