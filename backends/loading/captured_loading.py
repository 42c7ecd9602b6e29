"""Whether a backend's passes can be captured, found out before anything is compiled."""

from __future__ import annotations

from typing import Any

from draftwood.backends.kinds.longrope import LongRopeBackend
from draftwood.backends.kinds.packed import PackedBackend
from draftwood.backends.model.probe import disagreement
from draftwood.backends.passes.capture import Capture
from draftwood.backends.recurrent.rebuild import reference
from draftwood.backends.weights.streamed import streamed_modules
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.protocols import StateBackend


def with_capture(backend: StateBackend, capture: Capture) -> PackedBackend:
    """A backend like `backend`, which has no rows, with its passes captured.

    They are traced, run as traced and compared with the model's own decoding, which compiles nothing.

    Raises:
        InvalidInput: CUDA graphs of a model elsewhere.
        UnsupportedModel: what the backend does is not captured, or cannot be traced.
    """
    name = type(backend.model).__name__
    if capture == "cuda-graphs" and backend.device.type != "cuda":
        raise InvalidInput(
            f"{name} is on the {backend.device.type.upper()}, which has no CUDA graphs; load it onto a GPU, "
            'or with capture="compile".'
        )
    if (reason := objection(backend)) is not None:
        raise UnsupportedModel(
            f'{name} {reason}, so its passes are not captured; load it with capture="off".'
        )
    # As few layers would show the same, but not every model can be cut.
    kind: Any = type(backend)
    plain = reference(backend.model)
    reason = disagreement(kind(plain, capture=_as_traced), plain)
    if reason is not None:
        reason = " ".join(reason.split())[:200].rstrip(".")
        raise UnsupportedModel(f'Passes of {name} cannot be captured ({reason}); load it with capture="off".')
    captured: PackedBackend = kind(backend.model, capture=capture)
    return captured


def _as_traced(graph: Any, inputs: Any) -> Any:
    return graph


def objection(backend: StateBackend) -> str | None:
    """Why passes of `backend` run as they are, following the model's name; None where they need not."""
    if isinstance(backend, LongRopeBackend):
        return "is rotated by the length of its text"
    if not isinstance(backend, PackedBackend):
        return "decodes one path per row"
    if backend.model.config.is_encoder_decoder:
        return "is an encoder-decoder, which no text shows"
    if backend.ranks is not None:
        return "is sharded over processes"
    if streamed_modules(backend.model):
        return "has weights that are streamed"
    if len({weight.device for weight in backend.model.parameters()}) > 1:
        return "is spread over several devices"
    return None
