"""Engines by name: each runs the passes of a backend."""

from __future__ import annotations

import logging
from typing import Literal, get_args

from draftwood.backends.loading.captured_loading import with_capture
from draftwood.backends.loading.openvino_loading import is_installed, with_openvino
from draftwood.backends.openvino.conversion import Weights
from draftwood.backends.passes.capture import Capture
from draftwood.base.errors import InvalidInput, OutOfMemory, UnsupportedModel
from draftwood.protocols import StateBackend

log = logging.getLogger(__name__)

Engine = Literal["auto", "eager", "inductor", "openvino"]
"""What runs passes: torch as they are, torch.compile, OpenVINO, or what is fastest of those that serve."""


def check_engine(engine: str, capture: str, weights: str | None) -> None:
    """Refuse names of engines, captures and weights that do not exist, or do not go together.

    Raises:
        InvalidInput: one of them.
    """
    if engine not in get_args(Engine):
        names = ", ".join(f'"{name}"' for name in get_args(Engine))
        raise InvalidInput(f"engine is {engine!r}; it must be one of {names}.")
    if capture not in ("off", "compile", "cuda-graphs"):
        raise InvalidInput(f'capture is {capture!r}; it must be "off", "compile" or "cuda-graphs".')
    if capture != "off" and engine not in ("eager", "inductor"):
        raise InvalidInput(
            f"capture={capture!r} compiles passes with torch, which engine={engine!r} does not run; leave "
            "one of the two out."
        )
    if weights not in (None, *get_args(Weights)):
        raise InvalidInput(f'weights is {weights!r}; it must be None, "int8" or "int4".')
    if weights is not None and engine != "openvino":
        raise InvalidInput(
            f"weights={weights!r} rounds weights for OpenVINO, and engine={engine!r} may run "
            "something else; add "
            'engine="openvino".'
        )


def with_engine(
    backend: StateBackend, engine: Engine, capture: Capture, weights: Weights | None
) -> StateBackend:
    """A backend like `backend`, which has no rows, whose passes `engine` runs; `check_engine` has passed.

    Raises:
        InvalidInput: an engine that is not installed, or CUDA graphs of a model elsewhere.
        UnsupportedModel: an engine that does not run such passes.
    """
    if engine == "openvino":
        return with_openvino(backend, weights=weights)
    if engine == "auto":
        return _best(backend)
    if engine == "inductor" and capture == "off":
        capture = "compile"
    return backend if capture == "off" else with_capture(backend, capture)


def _best(backend: StateBackend) -> StateBackend:
    """`backend` over OpenVINO where that is installed and runs it; the choice is logged."""
    name = type(backend.model).__name__
    if not is_installed():
        log.info(
            "Passes of %s run eagerly, as OpenVINO is not installed; "
            '`pip install "draftwood[openvino]"` makes them faster on a CPU.',
            name,
        )
        return backend
    if backend.device.type != "cpu":
        log.info("Passes of %s run eagerly, as the model is on the %s.", name, backend.device.type.upper())
        return backend
    try:
        converted = with_openvino(backend)
    except (UnsupportedModel, OutOfMemory) as error:
        log.warning("Passes of %s run eagerly: %s.", name, str(error).partition("; load it with")[0])
        return backend
    log.info("Passes of %s run by OpenVINO, which is installed and computes what the model does.", name)
    return converted
