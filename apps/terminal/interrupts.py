"""Ctrl-C that Python would drop."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer, current_thread, main_thread

_AGAIN = 0.01  # seconds


@contextmanager
def never_dropped() -> Iterator[None]:
    """Raise `KeyboardInterrupt` a moment later where it comes in a place that cannot raise.

    Python only prints what is raised in a callback of the collector (Hypothesis times collections with
    one), in a callback of a weak reference and in `__del__`.
    """
    if current_thread() is not main_thread() or signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        yield  # signals are the main thread's business, and none to a program in the background
        return

    def again(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            before(unraisable)
            return
        later = Timer(_AGAIN, _interrupt)
        later.daemon = True
        later.start()

    before = sys.unraisablehook
    sys.unraisablehook = again
    try:
        yield
    finally:
        sys.unraisablehook = before


def _interrupt() -> None:
    """Send this process SIGINT, from a second thread."""
    if sys.platform == "win32":
        signal.raise_signal(signal.SIGINT)  # there os.kill ends the process instead
    else:
        os.kill(os.getpid(), signal.SIGINT)  # wakes the main thread where it waits
