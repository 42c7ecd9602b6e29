"""Runs that end early, by a kill, on a full disk or without memory: the next run goes on to the same."""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from tests.soak.processes import Limits, forked, server
from tests.soak.result import SoakResult

TWO = "two at once"
KINDS = (
    *("kill", "kill", "full disk", "no memory to begin with"),
    *("no more memory", "no memory for a while", TWO),
)
TOLD = ("Another process writes to ", "is there already; ")
"""What a second writer is told while the first one runs, and after it."""


@attrs.frozen
class Subject:
    """Something that a killed run leaves for the next one.

    Attributes:
        name: of it, for the table.
        words: the command line that makes it in a folder.
        journal: its journal in that folder.
        finished: whether it is there, whole.
        content: what of it must be that of a run in peace.
        lines: its lines as they are on disk.
    """

    name: str
    words: Callable[[Path], Sequence[object]]
    journal: Callable[[Path], Path]
    finished: Callable[[Path], bool]
    content: Callable[[Path], Any]
    lines: Callable[[Path], list[bytes]]


def whole_lines(file: Path) -> bytes:
    """The lines of a journal that were written to their end."""
    content = file.read_bytes() if file.exists() else b""
    return content[: content.rfind(b"\n") + 1]


@attrs.define
class _Peace:
    """A run that nobody disturbs: what it makes, and what it takes."""

    content: Any
    seconds: float
    size: int
    memory: int
    passes: int


def _in_peace(subject: Subject, folder: Path, context: Any) -> _Peace:
    folder.mkdir()
    began = time.perf_counter()
    one = forked(subject.words(folder), folder / "said", limits=Limits(told=folder / "peak"), context=context)
    sizes = [0]
    while one.process.exitcode is None:
        if (journal := subject.journal(folder)).exists():
            sizes.append(len(whole_lines(journal)))
        one.process.join(0.02)
    seconds = time.perf_counter() - began
    code, said = one.finished()
    assert code == 0, said
    memory, passes = map(int, (folder / "peak").read_text().split())
    return _Peace(subject.content(folder), seconds, max(sizes), memory, passes)


def ends(
    subject: Subject,
    count: int,
    *,
    seed: int = 0,
    most: int = 4,
    context: Any = None,
) -> SoakResult:
    """Runs that end early until `count` have, each followed by one that may end well.

    Args:
        subject: what is made.
        count: of ends; two runs at the same time are none.
        seed: of all chance.
        most: ends of one run.
        context: of multiprocessing; see `forked`.
    """
    result, rng = SoakResult(f"{subject.name} that ends early"), random.Random(seed)
    context = context or server()
    counts, left, number = Counter[str](), 0, 0
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        peace = _in_peace(subject, base / "peace", context)
        while sum(counts.values()) - counts[TWO] < count:
            folder, kept, wrong = base / str(number), b"", None
            folder.mkdir()
            number += 1
            for _ in range(rng.randrange(1, most + 1)):
                kind = rng.choice(KINDS)
                wrong = wrong or _end(kind, subject, folder, peace, rng, counts, context)
                if subject.finished(folder):
                    break
                now = whole_lines(subject.journal(folder))
                if not now.startswith(kept):
                    wrong = wrong or "lines that were on disk are gone or changed"
                kept = now
            left += max(kept.count(b"\n") - 1, 0)
            if not subject.finished(folder):
                code, said = forked(subject.words(folder), folder / "said", context=context).finished()
                wrong = wrong or (f"the run that went on ended with {code}: {said[-500:]}" if code else None)
            result.tried("run", wrong or _odd(subject, folder, peace, kept))
    ended = ", ".join(f"{many} by {kind}" for kind, many in sorted(counts.items()))
    result.figures["ends"] = (
        f"{sum(counts.values()) - counts[TWO]} ({ended}), which left {left} lines to go on from"
    )
    return result


def _odd(subject: Subject, folder: Path, peace: _Peace, kept: bytes) -> str | None:
    """Returns the fault of a run that has ended well at last."""
    if subject.content(folder) != peace.content:
        return "it is not what a run in peace makes"
    if missing := set(kept.splitlines()[1:]) - set(subject.lines(folder)):
        return f"{len(missing)} lines that were on disk were written again"
    names = {file.name for file in folder.iterdir()}
    if any(name.endswith(".part") for name in names):
        return f"a part is left: {sorted(names)}"
    return None


def _end(
    kind: str,
    subject: Subject,
    folder: Path,
    peace: _Peace,
    rng: random.Random,
    counts: Counter[str],
    context: Any,
) -> str | None:
    """Let a run end early; what is wrong with how it did. One that is quick enough ends well."""
    words, said = subject.words(folder), folder / "said"
    moment = rng.uniform(0, peace.seconds)
    if kind == TWO:
        return _two(words, folder, counts, context)
    if kind == "kill":
        one = forked(words, said, context=context)
        one.process.join(moment)
        one.process.kill()
        one.process.join()
        counts[kind] += one.process.exitcode != 0
        return None
    if kind == "full disk":
        size = len(whole_lines(subject.journal(folder)))
        limits = Limits(file=max(size + rng.randrange(peace.size), 400))
    elif kind == "no memory to begin with":
        limits = Limits(memory=rng.randrange(peace.memory))
    else:
        first = rng.randrange(1, peace.passes)
        limits = Limits(without=range(first, sys.maxsize if kind == "no more memory" else first + 3))
    code, words_said = forked(words, said, limits=limits, context=context).finished()
    counts[kind] += code != 0
    if code == 1 and not words_said.rstrip().splitlines()[-1].startswith("Error: "):
        return f"{kind} was no sentence: {words_said[-500:]}"
    # Libraries of other languages end a process that has no memory.
    if code not in (0, 1) and not (code < 0 and "memory" in kind):
        return f"{kind} ended with {code}: {words_said[-500:]}"
    return None


def _two(words: Sequence[object], folder: Path, counts: Counter[str], context: Any) -> str | None:
    """Two runs of the same at the same time: one writes, and the other is told."""
    both = [forked(words, folder / f"said{number}", context=context) for number in range(2)]
    ended = [one.finished() for one in both]
    counts[TWO] += 1
    if [code for code, _ in ended].count(0) < 1:
        return f"two at once ended with {[code for code, _ in ended]}: {[said[-300:] for _, said in ended]}"
    for code, said in ended:
        last = (said.rstrip().splitlines() or [""])[-1]
        told = last.startswith("Error: ") and any(part in last for part in TOLD)
        if code not in (0, 1) or (code == 1 and not told):
            return f"one of two at once ended with {code}: {said[-500:]}"
    return None
