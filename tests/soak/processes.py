"""The command line in separate processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache, partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import attrs
import torch

from draftwood.backends.kinds.packed import PackedBackend

COMMAND = [sys.executable, "-c", "from draftwood_cli import main; main()"]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "DRAFTWOOD_KERNELS": "off",
    "DRAFTWOOD_DEBUG": "0",
    "COLUMNS": "100",
}


@attrs.frozen(eq=False)
class Started:
    """A process of the command line, from the start of Python on."""

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
    """Start the command line as a shell does."""
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


@attrs.frozen(eq=False)
class Forked:
    """A process of the command line that has torch already.

    Attributes:
        process: it.
        said: the file of its stdout and stderr.
    """

    process: BaseProcess
    said: Path

    def finished(self, seconds: float = 300) -> tuple[int, str]:
        """Its exit code, and all that it said."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            raise TimeoutError(f"It runs on after {seconds:.0f} seconds; it said: {self.said.read_text()}")
        return self.process.exitcode, self.said.read_text(errors="replace")


@cache
def server() -> Any:
    """Returns a fork server whose processes have loaded all they need, and starts it."""
    os.environ.update(ENVIRONMENT)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.soak.preloaded"])
    first = context.Process(target=bool)
    first.start()
    first.join()
    return context


@attrs.frozen(kw_only=True)
class Limits:
    """The limits of a process on the machine.

    Attributes:
        file: bytes that no file it writes may exceed; the system refuses the rest.
        memory: bytes of addresses that it may ask for beyond those it has.
        without: passes of the models, counted from 1, for which there is no memory.
        told: a file for the bytes of addresses that it asked for in all, and the number of passes.
    """

    file: int | None = None
    memory: int | None = None
    without: range = range(0)
    told: Path | None = None


def forked(
    words: Sequence[object], said: Path, *, limits: Limits | None = None, context: Any = None
) -> Forked:
    """Run the command line in a forked process.

    Args:
        words: its arguments.
        said: where stdout and stderr go.
        limits: what it may have.
        context: of multiprocessing; by default a server forks, which has no threads.
    """
    context = context or server()
    given = ([str(word) for word in words], str(said), limits or Limits())
    process = context.Process(target=_run, args=given)
    process.start()
    return Forked(process, said)


def _run(words: list[str], said: str, limits: Limits) -> None:
    import resource

    from draftwood_cli import main

    from draftwood.apps.bench import measure

    # Threads that load weights would start torch's pool anew, which fails now and then after a fork.
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    # After a fork of pytest these would still be the streams that it captures.
    sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
    vars(measure)["_SIZES"] = (1, 2, 4)  # fewer passes are timed
    if limits.file is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file, resource.RLIM_INFINITY))
    if limits.memory is not None:
        _limit_memory(limits.memory)
    passes = _Passes(limits.without)
    began = _addresses("VmSize")
    sys.argv = ["draftwood", *words]
    try:
        main()
    finally:
        if limits.told is not None:
            limits.told.write_text(f"{_addresses('VmPeak') - began} {passes.count}")


def _limit_memory(more: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (_addresses("VmSize") + more, resource.RLIM_INFINITY))


class _Passes:
    """Counts the passes of all models, and has memory run out in some of them."""

    def __init__(self, without: range) -> None:
        self.count = 0
        extend = PackedBackend.extend

        def counted(backend: Any, *arguments: Any) -> Any:
            self.count += 1
            if self.count in without:
                torch.empty(2**46)
            return extend(backend, *arguments)

        vars_of: Any = PackedBackend
        vars_of.extend = counted


def _addresses(name: str) -> int:
    """Bytes of addresses of this process: `VmSize` now, `VmPeak` at most."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1]) * 1024
