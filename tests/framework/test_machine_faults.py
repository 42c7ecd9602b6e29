"""Faults of the machine are recognised, whoever tells of them and however; nothing else is."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
import torch.distributed as dist

from draftwood.base.errors import InvalidInput, OutOfMemory
from draftwood.base.machine_faults import MachineFault, machine_fault


@pytest.fixture(scope="module")
def provoked() -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-m", "tests.framework.provoked_faults"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, env=environment)
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {line["name"]: line for line in lines}


MEMORY = ["torch.empty", "torch overflow", "numpy.zeros", "bytearray", "concatenation", "torch", "lists"]
MEMORY += ["numpy", "oneDNN", "lapack", "draws", "shared memory", "threads"]
DISK = ["write", "torch.save", "old torch.save", "safetensors", "numpy.save", "tokenizer", "mapped file"]
DISK += ["full device", "torch.save to a full device", "tokenizer to a full device"]
RANK = ["killed rank", "silent rank", "no other process"]


@pytest.mark.linux
@pytest.mark.parametrize(
    ("name", "kind"),
    [(name, kind) for kind, names in (("memory", MEMORY), ("disk", DISK), ("rank", RANK)) for name in names],
)
def test_a_real_fault_is_recognised(provoked: dict[str, dict[str, Any]], name: str, kind: str) -> None:
    told = provoked[name]
    assert told["kind"] == kind, told
    assert "\n" not in told["message"]
    assert told["message"].endswith(".")
    assert len(told["message"]) < 300


# As torch, its libraries and drivers put it; what cannot be provoked here.
TEXTS = [
    ("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB.", "memory"),
    (
        "CUDA error: out of memory\nCUDA kernel errors might be asynchronously reported at some call",
        "memory",
    ),
    ("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "memory"),
    ("cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "memory"),
    ("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED", "memory"),
    ("HIP out of memory. Tried to allocate 20.00 MiB.", "memory"),
    ("MPS backend out of memory (MPS allocated: 5.05 GB, other allocations: 1.00 GB)", "memory"),
    ("Triton Error [CUDA]: out of memory", "memory"),
    ("DefaultCPUAllocator: not enough memory: you tried to allocate 8 bytes.", "memory"),
    ("[enforce fail at inline_container.cc:626] . unexpected pos 64 vs 0", "disk"),
    ("PytorchStreamWriter failed writing file data/0: file write failed", "disk"),
    ("Application timeout caused pair closure", "rank"),
]


@pytest.mark.parametrize(("text", "kind"), TEXTS)
def test_a_known_text_is_recognised(text: str, kind: str) -> None:
    fault = machine_fault(RuntimeError(text))
    assert fault is not None
    assert fault.kind == kind
    assert fault.retry == (kind == "memory")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (MemoryError(), "memory"),
        (torch.OutOfMemoryError("CUDA out of memory."), "memory"),
        (OutOfMemory("No more."), "memory"),
        (ImportError("libopenblas.so: failed to map segment from shared object"), "memory"),
        *(
            (OSError(number, os.strerror(number)), "disk")
            for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        ),
        (OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)), "memory"),
        # Of a group, whatever its words: after a failed collective fewer rows do not help.
        (dist.DistBackendError("NCCL error: unhandled cuda error, Cuda failure 2 'out of memory'"), "rank"),
        (dist.DistNetworkError("Failed to recv, got 0 bytes. Connection was likely closed."), "rank"),
    ],
)
def test_a_class_or_number_is_recognised(error: Exception, kind: str) -> None:
    fault = machine_fault(error)
    assert fault is not None
    assert fault.kind == kind


def _raised(call: Any) -> BaseException:
    try:
        call()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def _damaged(folder: Path) -> None:
    (folder / "file").write_bytes(b"PK\x03\x04 nothing")
    torch.load(folder / "file")


MISTAKES: dict[str, Callable[[Path], Any]] = {
    "shapes": lambda _: torch.ones(2, 3) @ torch.ones(2, 3),
    "index": lambda _: torch.ones(2)[5],
    "dtypes": lambda _: torch.ones(2, 2) @ torch.ones(2, 2).long(),
    "negative size": lambda _: torch.empty(-1),
    "no file": lambda folder: (folder / "absent").read_text(encoding="utf-8"),
    "a folder": lambda folder: folder.read_text(encoding="utf-8"),
    "damaged": _damaged,
    "recursion": lambda folder: MISTAKES["recursion"](folder),
    "group": lambda _: dist.all_reduce(torch.ones(1)),
    "key": lambda _: dict[str, int]()["memory"],
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_nobodys_fault_but_its_makers(name: str, tmp_path: Path) -> None:
    assert machine_fault(_raised(lambda: MISTAKES[name](tmp_path))) is None


@pytest.mark.parametrize(
    "error",
    [
        ValueError("The grammar is out of memory."),
        InvalidInput("max_new_tokens needs more memory than there is: out of memory."),
        KeyboardInterrupt(),
        SystemExit(1),
        BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)),
        TimeoutError("nobody came"),
    ],
)
def test_words_alone_make_no_fault(error: BaseException) -> None:
    assert machine_fault(error) is None


def test_an_error_from_a_fault_is_one() -> None:
    def wrapped() -> None:
        try:
            torch.empty(2**50)
        except RuntimeError as error:
            raise InvalidInput("The folder could not be read; give another.") from error

    fault = machine_fault(_raised(wrapped))
    assert fault == MachineFault("memory", "The folder could not be read; give another.")


def test_an_error_while_a_fault_was_handled_is_one_unless_that_is_hidden() -> None:
    def while_handled() -> None:
        try:
            raise MemoryError
        except MemoryError:
            dict[str, int]()["cleaning up"]

    def hidden() -> None:
        try:
            raise MemoryError
        except MemoryError:
            raise KeyError("another") from None

    def stopped() -> None:
        try:
            raise MemoryError
        except MemoryError:
            raise KeyboardInterrupt  # noqa: B904

    fault = machine_fault(_raised(while_handled))
    assert fault is not None
    assert fault.kind == "memory"
    assert machine_fault(_raised(hidden)) is None
    assert machine_fault(_raised(stopped)) is None


def test_the_reason_is_the_first_errors() -> None:
    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "answers.pt")

        def flush(self) -> None: ...

    full: Any = Full()
    fault = machine_fault(_raised(lambda: torch.save(torch.ones(9), full)))
    assert fault is not None
    assert fault.message == (
        f"'answers.pt' cannot be written: {os.strerror(errno.ENOSPC)}; make room and run it again."
    )


def test_a_circle_of_causes_ends() -> None:
    one, other = KeyError("one"), KeyError("other")
    one.__cause__, other.__cause__ = other, one
    assert machine_fault(one) is None


def test_a_fault_has_a_kind_that_is_known() -> None:
    with pytest.raises(ValueError, match="'kind' must be in"):
        MachineFault("weather", "It rains.")  # type: ignore[arg-type]
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        MachineFault("disk", "No room.").kind = "memory"  # type: ignore[misc]
