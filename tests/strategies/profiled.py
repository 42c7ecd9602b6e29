"""Looking at every call and return of Python functions while something runs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def profiled(run: Callable[[], object], note: Callable[[FrameType, str, Any], None]) -> None:
    """Call `run`, with `note` as the profiler of this thread meanwhile."""
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
