"""Recurrent states of a transformers cache that another call filled."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from draftwood.backends.recurrent.layer_state import LayerState
from draftwood.base.errors import InvalidInput, UnsupportedModel


def given_states(
    cache: Any, layers: Sequence[LayerState], *, rows: int, lengths: Sequence[int] = ()
) -> list[Tensor]:
    """Returns the state `[rows, ...]` of every recurrent layer, as that layer keeps it.

    Args:
        cache: of the model, filled.
        layers: of the model, in the order in which they run.
        rows: which it is to hold.
        lengths: tokens of every row, where a row without any must have no state; default: it may.

    Raises:
        InvalidInput: a cache without these states, or of other rows.
        UnsupportedModel: a layer whose state no cache of transformers holds.
    """
    held = getattr(cache, "layers", ())
    states, empty = [], [row for row, length in enumerate(lengths) if not length]
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
        # A model masks no padding in a pass of one column, and later padding would change such a state.
        if read := [row for row in empty if bool(kept[0][row].any())]:
            raise InvalidInput(
                f"past_key_values has read padding into the recurrent states of row {read[0]}, of which it "
                "has no token; leave it out, or fill it with more than one column at once."
            )
        states.append(layer.adopted(kept[0]))
    return states
