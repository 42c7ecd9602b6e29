"""Whether a backend serves a model at every length, found out within a few tokens."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from draftwood.backends.context import SWITCH
from draftwood.backends.forward import plain_logits
from draftwood.backends.lengths import FAR, NEAR, idle, nearer, numbers
from draftwood.backends.probe import LENGTHS, disagreement
from draftwood.backends.recurrent.rebuild import reference
from draftwood.errors import UnsupportedModel
from draftwood.protocols import StateBackend


def misfit(make: Callable[[Any], StateBackend], model: Any) -> str | None:
    """Why the backend that `make` gives does not serve `model`, or None.

    It is tried on a short text; beyond every window, chunk, scale and switch that the configuration names,
    in a copy where these come after a few tokens; and where that changes nothing, as with masks made when the
    model was built, on a text beyond them, if it is short enough.

    Raises:
        UnsupportedModel: `make` refuses the model, or the model gives no logits for words alone.
    """
    make(model)  # which refuses some by a sentence of its own
    plain = reference(model)
    try:
        plain_logits(plain, [1, 2, 3])
    except Exception as error:  # a model may want pictures, sound or another text in many ways
        raise UnsupportedModel(
            f"{type(model).__name__} gives no logits for words alone ({type(error).__name__}: "
            f"{' '.join(str(error).split())[:160].rstrip('.')}); use a causal language model."
        ) from error
    if (reason := disagreement(make(plain), plain)) is not None:
        return reason
    if not (named := numbers(model, above=NEAR)):
        return None
    text = [(17 * i + 11) % (make(plain).vocab_size) for i in range(2 * NEAR + 4)]
    still = idle(plain, list(named), text)
    near = nearer(plain, list(named))
    if (reason := disagreement(make(near), near)) is not None:
        return f"beyond {_listed(named)} tokens, {reason}"
    # How a rotation is scaled is settled when the model is built.
    far = [named[name] for name in still if name != SWITCH and LENGTHS[1] < named[name] <= FAR]
    if far and (reason := disagreement(make(plain), plain, longest=max(far) + NEAR)) is not None:
        return f"beyond {max(far)} tokens, {reason}"
    return None


def _listed(named: dict[str, int]) -> str:
    return " or ".join(str(value) for value in sorted(set(named.values())))
