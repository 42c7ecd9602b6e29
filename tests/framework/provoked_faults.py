"""Real faults of the machine, each provoked in a separate process, and the verdicts of `machine_fault`.

`python -m tests.framework.provoked_faults` prints a line of JSON per fault: its name, class, text, and the
kind and message that `machine_fault` gives (null where it gives None). Each fault has a forked process of its
own, as a library that has once met a limit on memory is not to be trusted afterwards.
"""

from __future__ import annotations

import datetime
import json
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from draftwood.base.machine_faults import machine_fault

Provoke = Callable[[], Any]
_MORE = 2**20
_SMALL = 50_000


def _many(make: Provoke) -> Provoke:
    return lambda: [make() for _ in range(1000)]


def _threads() -> None:
    for _ in range(1000):
        threading.Thread(target=time.sleep, args=(20,), daemon=True).start()


_MATRIX = torch.zeros(600, 600)
_WORDS = torch.randn(100_000)

MEMORY: dict[str, tuple[int, Provoke]] = {
    # Bytes of addresses that may be added, and who needs more.
    "torch": (_MORE, _many(lambda: _MATRIX @ _MATRIX)),
    "lists": (_MORE, _many(lambda: list(range(10**5)))),
    "numpy": (_MORE, _many(lambda: np.zeros(10**6))),
    "oneDNN": (3 * _MORE, lambda: _MATRIX.bfloat16() @ _MATRIX.bfloat16()),
    "lapack": (8 * _MORE, _many(lambda: torch.linalg.svd(_MATRIX))),
    "draws": (9 * _MORE, _many(lambda: torch.rand(100, 10_000).multinomial(100))),
    "shared memory": (9 * _MORE, _many(lambda: torch.zeros(10**6).share_memory_())),
    "threads": (10 * _MORE, _threads),
}
LARGE: dict[str, Provoke] = {
    "torch.empty": lambda: torch.empty(2**50),
    "torch overflow": lambda: torch.empty(2**46, 2**20),
    "numpy.zeros": lambda: np.zeros(2**50),
    "bytearray": lambda: bytearray(2**50),
    "concatenation": lambda: torch.cat([torch.empty(1).expand(2**44)] * 2),
}
_TOKENIZER = Tokenizer(models.WordLevel({str(number): number for number in range(30_000)}, unk_token="0"))


def _writing(file: Path) -> dict[str, Provoke]:
    def print_lines() -> None:
        with file.open("w", encoding="utf-8") as lines:
            lines.write("text " * _SMALL)

    return {
        "write": print_lines,
        "torch.save": lambda: torch.save(_WORDS, file),
        "old torch.save": lambda: torch.save(_WORDS, file, _use_new_zipfile_serialization=False),
        "safetensors": lambda: save_file({"words": _WORDS}, file),
        "numpy.save": lambda: np.save(file.with_suffix(".npy"), _WORDS.numpy()),
        "tokenizer": lambda: _TOKENIZER.save(str(file)),
        "mapped file": lambda: torch.from_file(str(file), shared=True, size=10**6),
    }


FULL: dict[str, Provoke] = {
    "full device": lambda: Path("/dev/full").write_text("text", encoding="utf-8"),
    "torch.save to a full device": lambda: torch.save(_WORDS, Path("/dev/full").open("wb")),  # noqa: SIM115
    "tokenizer to a full device": lambda: _TOKENIZER.save("/dev/full"),
}


def _told(name: str, error: BaseException, handle: int) -> NoReturn:
    # More memory is needed to tell of it than there is.
    import resource  # systems after POSIX have it

    resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
    fault = machine_fault(error)
    line = {
        "name": name,
        "class": type(error).__name__,
        "text": str(error),
        "kind": fault and fault.kind,
        "message": fault and fault.message,
    }
    os.write(handle, (json.dumps(line) + "\n").encode())
    os._exit(0)


def _apart(name: str, provoke: Provoke, handle: int, limit: Callable[[], None] = lambda: None) -> None:
    """Report the error that `provoke` raises, in a separate process."""
    if (child := os.fork()) == 0:
        limit()
        try:
            provoke()
        except BaseException as error:
            _told(name, error, handle)
        os._exit(1)
    os.waitpid(child, 0)


def _limit_memory(more: int) -> None:
    import resource  # systems after POSIX have it

    used = int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + more, resource.RLIM_INFINITY))


def _limit_files() -> None:
    import resource  # systems after POSIX have it

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_SMALL, _SMALL))


def _group(rank: int, file: str, lose: Callable[[], None], name: str, handle: int) -> NoReturn:
    dist.init_process_group(
        "gloo", init_method=f"file://{file}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=1)
    )
    numbers = torch.ones(3)
    dist.all_reduce(numbers)
    if rank == 1:
        lose()
    try:
        for _ in range(20):
            dist.all_reduce(numbers)
            time.sleep(0.1)
    except BaseException as error:
        _told(name, error, handle)
    os._exit(1)


def _lost_rank(name: str, lose: Callable[[], None], handle: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        children = []
        for rank in (0, 1):
            if (child := os.fork()) == 0:
                _group(rank, f"{folder}/group", lose, name, handle)
            children.append(child)
        os.waitpid(children[0], 0)
        os.kill(children[1], signal.SIGKILL)
        os.waitpid(children[1], 0)


def _alone_in_store() -> None:
    store: Any = dist.TCPStore(  # type: ignore[attr-defined]
        "127.0.0.1", 0, is_master=True, timeout=datetime.timedelta(seconds=1)
    )
    store.get("nobody sets this")


def main(handle: int) -> None:
    torch.set_num_threads(1)
    for name, provoke in LARGE.items():
        _apart(name, provoke, handle)
    for name, (more, provoke) in MEMORY.items():
        _apart(name, provoke, handle, lambda more=more: _limit_memory(more))  # type: ignore[misc]
    with tempfile.TemporaryDirectory() as folder:
        for name, provoke in _writing(Path(folder) / "file").items():
            _apart(name, provoke, handle, _limit_files)
    for name, provoke in FULL.items():
        _apart(name, provoke, handle)
    _lost_rank("killed rank", lambda: os.kill(os.getpid(), signal.SIGKILL), handle)
    _lost_rank("silent rank", lambda: time.sleep(60), handle)
    _apart("no other process", _alone_in_store, handle)


if __name__ == "__main__":
    main(1)
