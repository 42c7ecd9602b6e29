"""Converted models on the disk, by a digest of all that they were made of.

A model with another weight, adapter or setting has another digest, and so has one that another version of
a library converts. Files that were longest unused go where there are too many.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from draftwood.base.machine_faults import machine_fault
from draftwood.kernels import support
from draftwood.trees import level_plan

log = logging.getLogger(__name__)

VARIABLE = "DRAFTWOOD_CACHE"
"""The environment variable that names the folder; `off` keeps nothing."""

LIMIT = 16 * 2**30
"""Bytes of all models that are kept."""

_PACKAGES = ("openvino", "nncf", "torch", "transformers", "draftwood")


def folder() -> Path | None:
    """The folder of converted models; None where none are kept."""
    named = os.environ.get(VARIABLE, "")
    if named == "off":
        return None
    if named:
        return Path(named) / "openvino"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "draftwood" / "openvino"


def key_of(parts: Iterable[object]) -> str:
    """Returns the name of a model made of `parts`, which `repr` tells apart, by the code that runs here."""
    made = hashlib.sha256(_code().encode())
    for part in parts:
        made.update(repr(part).encode())
        made.update(b"\0")
    return made.hexdigest()


@cache
def _code() -> str:
    """A digest of the code that makes functions of models, and of the versions of what converts them."""
    made = hashlib.sha256()
    backends, kernels = Path(__file__).parents[1], Path(support.__file__).parent
    for file in [*sorted(backends.rglob("*.py")), *sorted(kernels.rglob("*.py")), Path(level_plan.__file__)]:
        made.update(file.read_bytes())
    for name in _PACKAGES:
        try:
            made.update(f"{name}{version(name)}".encode())
        except PackageNotFoundError:
            made.update(name.encode())
    return made.hexdigest()


def read(core: Any, key: str) -> Any:
    """Returns the model of this key, or None where it is not there or cannot be read."""
    if (root := folder()) is None or not (root / key / "model.xml").is_file():
        return None
    try:
        model = core.read_model(root / key / "model.xml", root / key / "model.bin")
        os.utime(root / key)
    except (OSError, RuntimeError) as error:
        log.info("A converted model in %s cannot be read, and is made anew: %s.", root, error)
        forget(key)
        return None
    return model


def write(model: Any, key: str) -> None:
    """Keep `model`; where that is not possible the log says why."""
    import openvino

    if (root := folder()) is None:
        return
    new = root / f".{secrets.token_hex(8)}"
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        new.mkdir()
        openvino.save_model(model, new / "model.xml", compress_to_fp16=False)
        # Whole or not at all; another process may have been faster.
        if not (root / key).exists():
            new.rename(root / key)
        _make_room(root)
    except (OSError, RuntimeError) as error:
        if machine_fault(error) is not None and not isinstance(error, OSError):
            raise
        log.info("A converted model cannot be kept in %s: %s.", root, error)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def forget(key: str) -> None:
    """Delete the model of this key."""
    if (root := folder()) is not None:
        shutil.rmtree(root / key, ignore_errors=True)


def _make_room(root: Path) -> None:
    """Delete the models that were longest unused until the others fit."""
    kept = sorted((one for one in root.iterdir() if one.is_dir()), key=lambda one: -one.stat().st_mtime)
    held = 0
    for one in kept:
        held += sum(file.stat().st_size for file in one.iterdir())
        if held > LIMIT:
            shutil.rmtree(one, ignore_errors=True)
