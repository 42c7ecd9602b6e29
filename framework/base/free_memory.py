"""Memory that is free on this machine, as far as its operating system tells."""

from __future__ import annotations

import os
from pathlib import Path

LIMITED, USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
"""What Linux tells a container of its own memory."""


def free_memory() -> int:
    """Returns the bytes that are free, no more than a container has left; 0 where that is not known."""
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not on every system
        return 0
    try:
        return max(min(free, int(LIMITED.read_text()) - int(USED.read_text())), 0)
    except (OSError, ValueError):  # no container, or one without a limit
        return max(free, 0)
