"""Says whether code computes in float32, so that errors of its rounding are no bias."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class _Watch(TorchDispatchMode):
    """Remembers whether an operation of torch gave a tensor of float32."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        several = given if isinstance(given, (tuple, list)) else (given,)
        self.found |= any(getattr(one, "dtype", None) is torch.float32 for one in several)
        return given


def computes_in_float32(run: Callable[[], object]) -> bool:
    """Returns whether `run` makes a tensor of float32."""
    watch = _Watch()
    with watch:
        run()
    return watch.found
