"""Models and tokenizers by name for the command line, quietly and safely."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

from draftwood import Drafter, StateBackend, registry, zoo
from draftwood.apps.failures import one_line
from draftwood.errors import IncompatibleModels, UnsupportedModel

TARGET, DRAFT = "llama-7m", "llama-draft"


class Dtype(StrEnum):
    """Precisions that the command line offers."""

    auto = "auto"
    float32 = "float32"
    bfloat16 = "bfloat16"


def quiet() -> None:
    """Keep transformers' progress bars and warnings from the terminal."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import warnings

    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    warnings.filterwarnings("ignore", module="transformers")


def locate(name: str) -> str:
    """A folder that exists, a model of the zoo, or else a name on the hub."""
    if not Path(name).exists() and name in zoo.names():
        return str(zoo.path(name))
    return name


def load_backend(name: str, *, dtype: Dtype, device: str | None, trust_remote_code: bool) -> StateBackend:
    """The backend of the model `name` (a folder, a zoo name or a hub name)."""
    import torch

    place = torch.device(device) if device else None
    wanted = {Dtype.float32: torch.float32, Dtype.bfloat16: torch.bfloat16}.get(dtype)
    return registry.load(locate(name), dtype=wanted, device=place, trust_remote_code=trust_remote_code)
