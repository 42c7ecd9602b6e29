"""Says whether code computes in float32 or less, so that errors of its rounding are no bias."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

import numpy as np
from torch.utils._python_dispatch import TorchDispatchMode

_NAMES = ("float32", "float16", "bfloat16", "single", "half")
_WORDS = ("float32", "float16", "f4", "<f4", "=f4", "f2", "<f2", "=f2")
"""Names of such types, and the strings by which numpy's arrays are asked for."""

_TYPES = (np.float32, np.float16)


class _OfTorch(TorchDispatchMode):
    """Remembers whether an operation of torch gave a tensor of float32 or less."""

    found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        self.found |= _any_is_single(given if isinstance(given, (tuple, list)) else (given,))
        return given


class _OfOthers:
    """Called by Python around each call; looks for numbers of float32 or less in variables and results.

    Operators between arrays make no call, and their results may have no name. So code that names such a type
    of numpy counts too.
    """

    found = False

    def __init__(self) -> None:
        self._read = set[CodeType]()

    def __call__(self, frame: FrameType, event: str, of: Any) -> None:
        if self.found:
            return
        if event in ("c_call", "c_return"):
            self.found = _is_single(getattr(of, "__self__", None))
            return
        self.found = _any_is_single(frame.f_locals.values()) or _is_single(of)
        if event == "call" and frame.f_code not in self._read:
            self._read.add(frame.f_code)
            self.found |= "site-packages" not in frame.f_code.co_filename and _names_single(frame)


def computes_in_float32(run: Callable[[], object]) -> bool:
    """Returns whether `run` makes numbers of float32 or less: torch's, numpy's, or another package's."""
    of_torch, of_others = _OfTorch(), _OfOthers()  # type: ignore[no-untyped-call]
    before = sys.getprofile()
    with of_torch:
        sys.setprofile(of_others)
        try:
            run()
        finally:
            sys.setprofile(before)
    return of_torch.found or of_others.found


def _any_is_single(values: Iterable[Any]) -> bool:
    return any(_is_single(one) for one in values)


def _is_single(one: Any) -> bool:
    """Returns whether it is an array or a number with a dtype of float32 or less, of whichever package."""
    # Asked of the class: some objects answer every name, or never end to.
    return hasattr(type(one), "dtype") and str(one.dtype).rpartition(".")[2] in _NAMES


def _names_single(frame: FrameType) -> bool:
    """Returns whether the function that runs names such a type: `np.float32`, `float32` or `"f4"`."""
    known = frame.f_globals | frame.f_locals
    owner: Any = None
    for step in dis.get_instructions(frame.f_code):
        if owner is np and step.argval in _NAMES:
            return True
        owner = known.get(step.argval) if isinstance(step.argval, str) else None
        if any(owner is one for one in _TYPES) or (isinstance(owner, np.dtype) and owner.name in _NAMES):
            return True
    return any(one in _WORDS for one in frame.f_code.co_consts if isinstance(one, str))
