"""`machine_fault`: whether the machine caused an error: memory ran out, a process was lost, a disk is full.

Packages report the same fault in many ways: torch raises a plain `RuntimeError` when a CPU runs out of
memory, and some writers of files give only a text. So classes and error numbers are compared first, then
known texts.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from typing import Literal

import attrs
import torch
import torch.distributed

from draftwood.base.errors import DraftwoodError, OutOfMemory

Kind = Literal["memory", "rank", "disk"]


@attrs.frozen
class MachineFault:
    """A fault of the machine.

    Attributes:
        kind: `"memory"`: it ran out, on a CPU or GPU; `"rank"`: another process of a `torch.distributed`
            group died or did not answer in time; `"disk"`: there was no room for a file.
        message: one sentence: the fault, its reason, and a remedy.
    """

    kind: Kind = attrs.field(validator=attrs.validators.in_(("memory", "rank", "disk")))
    message: str

    @property
    def retry(self) -> bool:
        """Returns whether the same work may succeed with fewer rows at once."""
        return self.kind == "memory"


def machine_fault(error: BaseException) -> MachineFault | None:
    """Returns the fault of the machine that led to `error`, or None where there is none.

    An error that was raised because of another, or while another was handled, is a fault of the machine if
    the other is. `KeyboardInterrupt` and whatever else is no `Exception` never is.
    """
    if not isinstance(error, Exception):
        return None
    found = [(kind, link) for link in _chain(error) if (kind := _kind(link)) is not None]
    if not found:
        return None
    kind = found[0][0]
    if isinstance(error, DraftwoodError):
        return MachineFault(kind, str(error))  # which knows more than its cause
    # The first error says most: torch.save reports a wrong position where its file object gave the reason.
    return MachineFault(kind, _sentence(kind, next(link for same, link in reversed(found) if same == kind)))


_REMEDY = "use fewer rows, a smaller tree budget, a shorter prompt or a half-precision dtype"
_NO_MEMORY, _NO_ROOM = (errno.ENOMEM,), (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_MEMORY_TEXTS = re.compile(
    r"DefaultCPUAllocator"
    r"|not enough memory|paging file is too small"  # Windows
    r"|cannot allocate memory|bad[ _]alloc|can't allocate lock|can't start new thread"
    r"|failed to map segment from shared object"  # a module that is imported
    r"|could not (create|execute) a primitive$|could not create a memory"  # oneDNN
    r"|out[ _]of[ _]memory|ALLOC(ATION)?_FAILED"  # accelerators, and their libraries
    r"|Storage size calculation overflowed",
    re.IGNORECASE,
)
_RANK_TEXTS = re.compile(
    r"gloo/transport/|Connection closed by peer|Application timeout caused pair closure|monitoredBarrier"
)
_DISK_TEXTS = re.compile(
    r"No space left on device|Disk quota exceeded|File too large|not enough space on the disk"
    r"|inline_container.*unexpected pos|PytorchStreamWriter failed writing"  # torch.save
    r"|\d+ requested and \d+ written"  # numpy
)
_RUST_NUMBER = re.compile(r"\(os error (\d+)\)")
# The text of any other class says nothing: a `ValueError` of a grammar may speak of memory too.
_WITH_TEXTS = (RuntimeError, OSError, ImportError)


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _kind(error: BaseException) -> Kind | None:
    if isinstance(error, OutOfMemory | MemoryError | torch.OutOfMemoryError):
        return "memory"
    if isinstance(error, DraftwoodError):
        return None
    text = str(error)
    if _is_distributed(error) or (isinstance(error, RuntimeError) and _RANK_TEXTS.search(text)):
        return "rank"
    number = error.errno if isinstance(error, OSError) else None
    if number is None and (rust := _RUST_NUMBER.search(text)) is not None:
        number = int(rust[1])
    with_text = isinstance(error, _WITH_TEXTS)
    if number in _NO_ROOM or (with_text and _DISK_TEXTS.search(text)):
        return "disk"
    if number in _NO_MEMORY or (with_text and _MEMORY_TEXTS.search(text)):
        return "memory"
    return None


def _is_distributed(error: BaseException) -> bool:
    # torch may be built without it.
    kind = getattr(torch.distributed, "DistError", None)
    return kind is not None and isinstance(error, kind)


def _sentence(kind: Kind, error: BaseException) -> str:
    reason = _reason(error)
    if kind == "memory":
        return f"Memory ran out ({reason}); {_REMEDY}."
    if kind == "rank":
        return f"Another process of the group was lost or did not answer ({reason}); start all of them again."
    filename = error.filename if isinstance(error, OSError) else None
    file = repr(str(filename)) if filename else "The output"
    return f"{file} cannot be written: {reason}; make room and run it again."


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = str(error).strip().splitlines() or [type(error).__name__]
    # torch puts its own places before the words: "[enforce fail at alloc_cpu.cpp:127] err == 0. Default..."
    words = re.sub(r"^\[[^\]]*\] *(err == 0\. *)?(\. )?", "", lines[0]).split(" This is typically")[0]
    return words[:160].rstrip(". ")
