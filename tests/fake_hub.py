"""A cache of the Hugging Face hub without a hub: what it holds is all that there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import huggingface_hub.constants
import pytest

COMMIT = "a" * 40


def empty_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Returns what makes the place of a repository's files, where the cache has them; nothing is fetched."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)

    def place(name: str) -> Path:
        there = folder / f"models--{name.replace('/', '--')}"
        (there / "refs").mkdir(parents=True)
        (there / "refs" / "main").write_text(COMMIT)
        return there / "snapshots" / COMMIT

    return place
