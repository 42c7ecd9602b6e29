"""Putting OpenVINO under a loaded backend, and saying why not."""

from __future__ import annotations

import importlib.util
from functools import partial
from typing import Any

import torch

from draftwood.backends.kinds.packed import PackedBackend
from draftwood.backends.kinds.ssm import RecurrentBackend
from draftwood.backends.loading.captured_loading import objection
from draftwood.backends.model.probe import disagreement
from draftwood.backends.openvino.conversion import ROUNDED_RUN_IN, Weights
from draftwood.backends.openvino.runner import OpenVinoRunner
from draftwood.backends.recurrent.rebuild import reference
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.protocols import StateBackend

CHUNK = 512
"""Tokens of a prompt that a pass reads at once: some attention has a score of all of them and all slots."""


def is_installed() -> bool:
    """Whether OpenVINO can be imported."""
    return importlib.util.find_spec("openvino") is not None


def with_openvino(backend: StateBackend, *, weights: Weights | None = None) -> PackedBackend:
    """A backend like `backend`, which has no rows, whose passes OpenVINO runs.

    They are converted, and compared with the model's own decoding; then weights are rounded to `weights`.

    Raises:
        InvalidInput: OpenVINO is not installed, or NNCF, which rounds weights.
        UnsupportedModel: OpenVINO does not run the passes of such a backend, or runs them otherwise.
    """
    name = type(backend.model).__name__
    if not is_installed():
        raise InvalidInput(
            'engine="openvino" needs the package openvino, which is not installed; '
            'run `pip install "draftwood[openvino]"`, or use engine="eager".'
        )
    if (reason := _objection(backend, weights)) is not None:
        raise UnsupportedModel(f'{name} {reason}, so OpenVINO does not run it; load it with engine="eager".')
    kind: Any = type(backend)
    model = backend.model
    runner = partial(OpenVinoRunner, kept_in=None if weights is None else ROUNDED_RUN_IN)
    converted: PackedBackend = kind(model, chunk=CHUNK, runner=runner)
    if (reason := disagreement(converted, reference(model))) is not None:
        raise UnsupportedModel(
            f'OpenVINO does not compute what {name} does ({reason}); load it with engine="eager".'
        )
    if weights is None:
        return converted
    rounded: PackedBackend = kind(model, chunk=CHUNK, runner=partial(runner, weights=weights))
    # Conversion may fail, and is to do so here.
    rounded.first_logits([torch.tensor([1, 2, 3])])
    rounded.release()
    return rounded


def _objection(backend: StateBackend, weights: Weights | None) -> str | None:
    """Why OpenVINO does not run passes of `backend`, following the model's name; None where it may."""
    if backend.device.type != "cpu":
        return f"is on the {backend.device.type.upper()}"
    if (reason := objection(backend)) is not None:
        return reason
    if isinstance(backend, RecurrentBackend):
        if weights is not None:
            return f"has recurrent layers, which read prompts by torch, without weights={weights!r}"
        if backend.not_converted is not None:
            return backend.not_converted
    if backend.model.dtype not in (torch.float32, torch.bfloat16):
        return f"computes in {str(backend.model.dtype).removeprefix('torch.')}, not in float32 or bfloat16"
    if torch.is_autocast_enabled("cpu"):
        return "runs in autocast"
    if backend.model.training:
        return "is in training mode"
    return None
