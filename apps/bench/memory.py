"""The peak of memory since a moment."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch

from draftwood.decoding.round_records import peak_memory

__all__ = ["forget_peak", "peak_memory"]


def forget_peak() -> None:
    """Let `peak_memory` count from here: on an accelerator, and on Linux for the process too."""
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    # 5 sets the peak back to what is in use now. Elsewhere it is the peak of the whole process.
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
