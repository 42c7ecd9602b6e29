"""States of models during decoding: what a target and a drafter that is a model run on.

The names below are loaded when they are first asked for, since most of them wait for transformers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from draftwood.backends.kinds.recompute import RecomputingBackend
    from draftwood.backends.kinds.ssm import HybridBackend, SSMBackend
    from draftwood.backends.kinds.transformer import TransformerBackend
    from draftwood.backends.kinds.unrolled import UnrolledBackend
    from draftwood.backends.loading.gguf_loading import load_gguf
    from draftwood.backends.loading.loader import load, load_model
    from draftwood.backends.model.model_pass import ModelPass
    from draftwood.backends.model.runner import AsItIs, Runner
    from draftwood.backends.nodes.pass_inputs import PassInputs
    from draftwood.backends.nodes.validation import (
        as_nodes,
        as_rows,
        check_path,
        check_paths,
        remaining_rows,
    )

__all__ = [
    "AsItIs",
    "HybridBackend",
    "ModelPass",
    "PassInputs",
    "RecomputingBackend",
    "Runner",
    "SSMBackend",
    "TransformerBackend",
    "UnrolledBackend",
    "as_nodes",
    "as_rows",
    "check_path",
    "check_paths",
    "load",
    "load_gguf",
    "load_model",
    "remaining_rows",
]

_PLACES = {
    "kinds.recompute": ("RecomputingBackend",),
    "kinds.ssm": ("HybridBackend", "SSMBackend"),
    "kinds.transformer": ("TransformerBackend",),
    "kinds.unrolled": ("UnrolledBackend",),
    "loading.gguf_loading": ("load_gguf",),
    "loading.loader": ("load", "load_model"),
    "model.model_pass": ("ModelPass",),
    "model.runner": ("AsItIs", "Runner"),
    "nodes.pass_inputs": ("PassInputs",),
    "nodes.validation": ("as_nodes", "as_rows", "check_path", "check_paths", "remaining_rows"),
}
_WHERE = {name: module for module, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
