"""The target of drafters that run on the target itself, and the folder of its checkpoint."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
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


def checkpoint_of(target: StateBackend) -> Path | None:
    """Returns the folder of the checkpoint that `target` was loaded from, in the hub's cache for a hub name.

    None where it was not loaded from one, or its files are not here.
    """
    name = _name_of(target)
    if not name or Path(name).is_dir():
        return Path(name) if name else None
    from transformers.utils import cached_file

    try:
        found = cached_file(name, "config.json", local_files_only=True)
    except OSError:
        return None
    return None if found is None else Path(found).parent


def repository_of(target: StateBackend) -> str | None:
    """Returns the hub name by which `target` was loaded; None where it was loaded from a folder or made."""
    name = _name_of(target)
    return name if name and not Path(name).is_dir() else None


def _name_of(target: StateBackend) -> str:
    config = getattr(getattr(target, "model", None), "config", None)
    return str(getattr(config, "name_or_path", "") or "")
