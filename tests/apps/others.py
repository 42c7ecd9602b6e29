"""Snapshots of a folder before and after, and different weights under the same names."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file


def snapshot(folder: Path) -> dict[str, tuple[Any, ...]]:
    """All that is below a folder: kind, inode, links, time of change, and content; links are not followed."""
    found: dict[str, tuple[Any, ...]] = {}
    for path in sorted(folder.rglob("*")):
        told = path.lstat()
        content: Any = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = path.read_bytes()
        found[str(path)] = (told.st_mode, told.st_ino, told.st_nlink, told.st_mtime_ns, content)
    return found


def altered(file: Path) -> None:
    """Other weights under the names, in the shapes and of the sizes that they had."""
    weights = load_file(file)
    name = max(weights, key=lambda one: weights[one].numel())
    weights[name] = weights[name].clone()
    weights[name].view(-1)[-1] += 1
    save_file(weights, file, metadata={"format": "pt"})
