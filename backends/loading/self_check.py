"""The self-check: whether a backend runs a model correctly at every length, within a few tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftwood.backends.model.probe import LENGTHS, disagreement
from draftwood.backends.recurrent.rebuild import reference
from draftwood.backends.structure.context import ORIGINAL_LENGTH
from draftwood.backends.structure.forward import plain_logits
from draftwood.backends.structure.length_settings import (
    MOST_TOKENS,
    SMALL,
    length_settings,
    unused_settings,
    with_small_settings,
)
from draftwood.base.errors import UnsupportedModel
from draftwood.base.machine_faults import machine_fault
from draftwood.protocols import StateBackend


def self_check(make: Callable[[Any], StateBackend], model: Any) -> str | None:
    """Why the backend that `make` gives does not serve `model`, or None.

    It is tried on a short text; beyond every window, chunk, scale and switch that the configuration names,
    in a copy where these come after a few tokens; and where that changes nothing, as with masks made when the
    model was built, on a text beyond them, if it is short enough.

    Raises:
        UnsupportedModel: `make` refuses the model, or the model gives no logits for only words.
        OutOfMemory: a pass does not fit, which says nothing of the model.
    """
    make(model)  # which refuses some with a better sentence
    plain = reference(model)
    try:
        plain_logits(plain, [1, 2, 3])
    except Exception as error:  # a model may want pictures, sound or another text in many ways
        if machine_fault(error) is not None:
            raise
        raise UnsupportedModel(
            f"{type(model).__name__} gives no logits for a prompt of tokens only ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:160].rstrip('.')}); use a causal language model."
        ) from error
    if (reason := disagreement(make(plain), plain)) is not None:
        return reason
    if not (settings := length_settings(model, above=SMALL)):
        return None
    text = [(17 * i + 11) % (make(plain).vocab_size) for i in range(2 * SMALL + 4)]
    unused = unused_settings(plain, list(settings), text)
    small = with_small_settings(plain, list(settings))
    if (reason := disagreement(make(small), small)) is not None:
        return f"beyond {_listed(settings)} tokens, {reason}"
    # How a rotation is scaled is settled when the model is built.
    built_in = [settings[name] for name in unused if name != ORIGINAL_LENGTH]
    longest = max((length for length in built_in if LENGTHS[1] < length <= MOST_TOKENS), default=None)
    if longest and (reason := disagreement(make(plain), plain, longest=longest + SMALL)) is not None:
        return f"beyond {longest} tokens, {reason}"
    return None


def _listed(settings: dict[str, int]) -> str:
    return " or ".join(str(value) for value in sorted(set(settings.values())))
