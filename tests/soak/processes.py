"""The command line as processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import attrs

COMMAND = [sys.executable, "-c", "from draftwood_cli import main; main()"]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "COLUMNS": "100"}


@attrs.frozen(eq=False)
class Started:
    """A process of the command line."""

    process: subprocess.Popen[str]

    def wait_for_torch(self, seconds: float = 120) -> None:
        """Wait until the command loads torch, which it does first of all."""
        file = Path(f"/proc/{self.process.pid}/maps")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.process.poll() is None:
            if not file.exists() or "libtorch" in file.read_text(errors="replace"):
                return
            time.sleep(0.01)


def started(words: Sequence[object]) -> Started:
    process = subprocess.Popen(
        [*COMMAND, *map(str, words)],
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | ENVIRONMENT,
        # In the background Ctrl-C is ignored, and children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    return Started(process)
