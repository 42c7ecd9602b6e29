"""Names that lead to GGUF files, the format of llama.cpp."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import Any


def names_gguf(model: Any) -> bool:
    """Returns whether `model` names a GGUF file, by its ending or its first bytes."""
    if not isinstance(model, str | PathLike):
        return False
    name = fspath(model)
    if not isinstance(name, str):
        return False
    if name.lower().endswith(".gguf"):
        return True
    try:
        with Path(name).expanduser().open("rb") as content:
            return content.read(4) == b"GGUF"
    except (OSError, ValueError):
        return False
