"""The target of drafters that run on the target itself."""

from __future__ import annotations

from os import PathLike
from typing import Any

import torch

from draftwood import InvalidInput, StateBackend


def as_target(target: Any) -> StateBackend:
    """`target`, or `InvalidInput` for a model: one loaded here would not be the one that verifies."""
    if isinstance(target, str | PathLike | torch.nn.Module):
        raise InvalidInput(
            f"target is {str(target).splitlines()[0]!r:.60}, a model; make a backend of it with "
            "draftwood.load() and give that to the decoder too."
        )
    backend: StateBackend = target
    return backend
