"""Recurrent states of a transformers cache that another call filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from draftwood.backends.recurrent.layer_state import LayerState
from draftwood.base.errors import InvalidInput, UnsupportedModel


def given_states(cache: Any, layers: Sequence[LayerState], *, rows: int) -> list[Tensor]:
    """Returns the state `[rows, ...]` of every recurrent layer, as that layer keeps it.

    Args:
        cache: of the model, filled.
        layers: of the model, in the order in which they run.
        rows: which it is to hold.

    Raises:
        InvalidInput: a cache without these states, or of other rows.
        UnsupportedModel: a layer whose state no cache of transformers holds.
    """
    held = getattr(cache, "layers", ())
    states = []
    for layer in layers:
        if not layer.kept_as or layer.number is None:
            raise UnsupportedModel(
                f"The state of {layer.name} ({type(layer).__name__}) is in no cache of transformers; leave "
                "past_key_values out."
            )
        one = held[layer.number] if layer.number < len(held) else None
        kept = getattr(one, layer.kept_as, None) or {}
        if len(kept) != 1 or kept.get(0) is None:
            raise InvalidInput(
                f"Layer {layer.number} of past_key_values is a {type(one).__name__} without the one state "
                f"that {layer.name} continues; give a cache that this model filled, or leave it out."
            )
        if len(kept[0]) != rows:
            raise InvalidInput(
                f"past_key_values holds {len(kept[0])} rows and {rows} were given; give one text for each."
            )
        states.append(layer.adopted(kept[0]))
    return states
