"""Ctrl-C that Python would drop."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer, current_thread, main_thread
from types import FrameType

_AGAIN = 0.01  # seconds


@contextmanager
def heard_during_collections() -> Iterator[None]:
    """Raise `KeyboardInterrupt` a moment later where it comes while Hypothesis times a garbage collection.

    Python only prints what is raised in a callback of the collector.
    """
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield  # signals are the main thread's business, and none to a program in the background
        return

    def interrupted(signum: int, frame: FrameType | None) -> None:
        if frame is not None and frame.f_code.co_name == "gc_callback":
            later = Timer(_AGAIN, _send, (signum,))
            later.daemon = True
            later.start()
        else:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _send(signum: int) -> None:
    """Send this process the signal, from a thread beside the main one."""
    if sys.platform == "win32":
        signal.raise_signal(signum)  # there os.kill ends the process instead
    else:
        os.kill(os.getpid(), signum)  # wakes the main thread where it waits
