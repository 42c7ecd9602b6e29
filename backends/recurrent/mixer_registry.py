"""The mixer of every class of layers: the entry points of the group `draftwood.mixers`.

An entry is named after the class it supports, plainly (`Mamba2Mixer`) or with its module
(`transformers.models.mamba2.modeling_mamba2.Mamba2Mixer`), and leads to a subclass of `Mixer`. Our own are
registered in the same way.
"""

from __future__ import annotations

import re
from typing import Any

import torch

from draftwood.backends.recurrent.mixer import Mixer
from draftwood.base.errors import InvalidInput, UnsupportedModel
from draftwood.protocols import registry

KIND = "mixers"

_IDLE = re.compile(r"__init__|__repr__|extra_repr|_?(init|reset)_.*")
"""Methods that compute nothing of a text: they build, name or initialise a layer."""


def served_classes() -> str:
    """Returns the names of the supported classes."""
    return ", ".join(registry.names(KIND))


def mixer_for(kind: type[torch.nn.Module]) -> type[Mixer] | None:
    """The mixer for layers of the class `kind`, or of its nearest base class; None for other modules.

    Raises:
        UnsupportedModel: a class that `kind` comes from is supported, but `kind` has other methods in place
            of that class's, and may compute something else.
        InvalidInput: what is registered is no mixer.
    """
    registered = registry.names(KIND)
    for base in kind.__mro__:
        for name in (f"{base.__module__}.{base.__qualname__}", base.__name__):
            if name in registered:
                if changed := _changed(kind, base):
                    raise UnsupportedModel(
                        f"{kind.__name__} is a {base.__name__} with its own {', '.join(changed)}, so it may "
                        "compute something else; register a mixer for it under draftwood.mixers."
                    )
                return _mixer(name)
    return None


def _mixer(name: str) -> type[Mixer]:
    mixer = registry.get(KIND, name)
    if not (isinstance(mixer, type) and issubclass(mixer, Mixer)):
        raise InvalidInput(
            f"The entry point {name!r} of draftwood.mixers leads to {mixer!r:.80}; it must lead to a "
            "subclass of draftwood.backends.recurrent.Mixer."
        )
    return mixer


def _changed(kind: type, base: type) -> list[str]:
    """Returns the methods of `base`, or methods that a module calls, that the classes below it replace."""
    above = kind.__mro__[kind.__mro__.index(base) :]
    plain = torch.nn.Module.__mro__
    computing = {"forward", "__call__"}.union(*(vars(cls) for cls in above if cls not in plain))
    below = kind.__mro__[: -len(above)]
    replaced = {name for cls in below for name, value in vars(cls).items() if _computes(value)}
    return sorted(name for name in replaced & computing if not _IDLE.fullmatch(name))


def _computes(value: Any) -> bool:
    return callable(value) or isinstance(value, property | classmethod | staticmethod)
