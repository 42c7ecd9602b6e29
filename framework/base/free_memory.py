"""Memory that this machine has left, as far as its operating system tells."""

from __future__ import annotations

import os
import re
from pathlib import Path

MACHINE = Path("/proc/meminfo")
"""Linux's account of the memory of the machine."""

LIMIT, USED = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
"""Linux's account of the memory of a container: the most, and what is in use."""


def free_memory() -> int:
    """Returns the bytes that programs can have, no more than a container has left; 0 if that is not known."""
    left = _left_on_the_machine()
    try:
        return max(
            min(left, int(LIMIT.read_text(encoding="utf-8")) - int(USED.read_text(encoding="utf-8"))), 0
        )
    except (OSError, ValueError):  # no container, or one without a limit
        return left


def _left_on_the_machine() -> int:
    try:
        # Unlike the pages below, it counts what files in memory hold, which is given up for programs.
        if found := re.search(
            r"^MemAvailable:\s+(\d+) kB$", MACHINE.read_text(encoding="utf-8"), re.MULTILINE
        ):
            return int(found[1]) * 1024
    except OSError:
        pass
    try:
        return max(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), 0)
    except (AttributeError, OSError, ValueError):  # no such number on this system
        return 0
