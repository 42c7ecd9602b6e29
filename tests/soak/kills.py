"""A bench that is killed, or whose disk is full: nothing is lost, and the next run goes on."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.soak.processes import COMMAND, ENVIRONMENT, forked, server
from tests.soak.result import SoakResult

WORDS = ("--prompts", 2, "--prompt-length", 12, "--new-tokens", 4, "--temperature", 0.8)
STRATEGY = ("--strategy", "leviathan:length=2")
CELLS, RUN, RESULTS = "cells.jsonl", "run.json", "results.json"


def _words(folder: Path) -> list[object]:
    return ["bench", "--to", folder, *WORDS, *STRATEGY]


def _keys(folder: Path) -> list[str]:
    return [json.loads(line)["key"] for line in (folder / CELLS).read_bytes().splitlines()]


def _whole_lines(folder: Path) -> bytes:
    """The lines of the cells' file that were written to their end."""
    file = folder / CELLS
    content = file.read_bytes() if file.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def _sound(folder: Path, expected: Sequence[str], kept: bytes) -> str | None:
    """What is wrong with a folder whose run has ended well at last; `kept` was there before."""
    if not (folder / CELLS).read_bytes().startswith(kept):
        return "cells that were on disk are gone or changed"
    counts = Counter(_keys(folder))
    if twice := [key for key, count in counts.items() if count > 1]:
        return f"cells were measured twice: {twice}"
    if set(counts) != set(expected):
        return f"{len(counts)} cells and not the {len(expected)} of a run in peace"
    for name in (RUN, RESULTS):
        json.loads((folder / name).read_bytes())
    return None


def in_peace(folder: Path, context: Any = None) -> tuple[list[str], float]:
    """The cells of a run that nobody disturbs, and its seconds."""
    context = context or server()
    began = time.perf_counter()
    code, said = forked(_words(folder), folder.with_suffix(".said"), context=context).finished()
    assert code == 0, said
    return _keys(folder), time.perf_counter() - began


def kills(runs: int, *, seed: int = 0, most: int = 4, context: Any = None) -> SoakResult:
    """`runs` runs of bench, each killed up to `most` times at random moments before it may end.

    `context`: of multiprocessing; see `forked`.
    """
    result, rng = SoakResult("SIGKILL in a bench"), random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        expected, whole = in_peace(base / "peace", context)
        killed = left = 0
        for number in range(runs):
            folder, kept, wrong = base / str(number), b"", None
            for _ in range(rng.randrange(1, most + 1)):
                one = forked(_words(folder), base / "said", context=context)
                one.process.join(rng.uniform(0, whole))
                one.process.kill()
                one.process.join()
                if one.process.exitcode == 0:
                    break
                killed += 1
                now = _whole_lines(folder)
                if not now.startswith(kept):
                    wrong = wrong or "a kill lost cells that were on disk"
                kept = now
            left += kept.count(b"\n")
            code, said = forked(_words(folder), base / "said", context=context).finished()
            wrong = wrong or (f"the run that went on ended with {code}: {said[-500:]}" if code else None)
            result.tried("run", wrong or _sound(folder, expected, kept))
            shutil.rmtree(folder, ignore_errors=True)
    result.figures["kills"] = f"{killed}, which left {left} of {runs * len(expected)} cells to go on from"
    return result


def full_disk(runs: int, *, seed: int = 0) -> SoakResult:
    """`runs` runs of bench whose files cannot grow beyond some size, and one each that goes on."""
    result, rng = SoakResult("full disk, a limit of bytes a file"), random.Random(seed)
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        expected, _ = in_peace(base / "peace")
        largest = (base / "peace" / CELLS).stat().st_size
        for number in range(runs):
            folder, limit = base / str(number), rng.randrange(largest)
            said_file = base / "said"  # is held to the limit too, and what it says is short
            code, said = forked(_words(folder), said_file, largest=max(limit, 400)).finished()
            wrong = _one_sentence(code, said)
            kept = _whole_lines(folder)
            code, said = forked(_words(folder), base / "again").finished()
            wrong = wrong or (f"the run that went on ended with {code}: {said[-500:]}" if code else None)
            result.tried("run", wrong or _sound(folder, expected, kept))
    return result


def _one_sentence(code: int, said: str) -> str | None:
    lines = [line for line in said.splitlines() if line.startswith(("Error", "Unexpected", "Traceback"))]
    if code != 1 or len(lines) != 1 or not lines[0].startswith("Error: "):
        return f"exit code {code}, and it said: {said[-1500:]!r}"
    return None


_SCRIPT = """
mount -t tmpfs -o size={kib}k none "$1" || exit 77
shift
"$@" > "$SAID" 2>&1
echo $? > "$SAID.code"
cp -r "$DISK/run" "$SAID.kept"
mount -o remount,size=64m "$DISK"
"$@" > "$SAID.again" 2>&1
echo $? > "$SAID.again.code"
cp -r "$DISK/run" "$SAID.whole"
"""


def small_disk(sizes: Sequence[int] = (4, 8, 12)) -> SoakResult | None:
    """The same on disks of so many KiB; None where this machine lets nobody mount one."""
    if not shutil.which("unshare"):
        return None
    result = SoakResult("full disk, a small one")
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        expected, _ = in_peace(base / "peace")
        for kib in sizes:
            disk, said = base / f"disk{kib}", base / f"said{kib}"
            disk.mkdir()
            # A command of its own, as the mount is seen by the script's children alone.
            alone = ["unshare", "--user", "--map-root-user", "--mount"]
            script = ["sh", "-c", _SCRIPT.format(kib=kib), "sh", disk, *COMMAND, *_words(disk / "run")]
            done = subprocess.run(
                [*alone, *map(str, script)],
                env={**os.environ, **ENVIRONMENT, "SAID": str(said), "DISK": str(disk)},
                capture_output=True,
                text=True,
                check=False,
            )
            if not said.exists():
                return None if not result.done else result
            code, again = (int(Path(f"{said}{end}").read_text()) for end in (".code", ".again.code"))
            wrong = _one_sentence(code, said.read_text())
            if again:
                wrong = wrong or f"the run that went on: {Path(f'{said}.again').read_text()[-500:]}"
            whole = Path(f"{said}.whole")
            wrong = wrong or _sound(whole, expected, _whole_lines(Path(f"{said}.kept")))
            result.tried(f"{kib} KiB", wrong and f"{wrong} {done.stderr[-300:]}")
    return result
