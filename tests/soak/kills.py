"""A bench that ends early, and one on a small disk: nothing is lost, and the next run goes on."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.soak.ends import Subject, whole_lines
from tests.soak.processes import COMMAND, ENVIRONMENT, forked
from tests.soak.result import SoakResult

WORDS = ("--prompts", 2, "--prompt-length", 12, "--new-tokens", 4, "--temperature", 0.8)
STRATEGY = ("--strategy", "leviathan:length=2")
CELLS, RUN, RESULTS = "cells.jsonl", "run.json", "results.json"


def _words(folder: Path) -> list[object]:
    return ["bench", "--to", folder, *WORDS, *STRATEGY]


def _keys(folder: Path) -> list[str]:
    return [json.loads(line)["key"] for line in (folder / CELLS).read_bytes().splitlines()[1:]]


def _sound(folder: Path, expected: Sequence[str], kept: bytes) -> str | None:
    """Returns the fault of a folder whose run has ended well at last; `kept` was there before."""
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


def in_peace(folder: Path) -> list[str]:
    """The cells of a run that nobody disturbs."""
    code, said = forked(_words(folder), folder.with_suffix(".said")).finished()
    assert code == 0, said
    return _keys(folder)


def _results(folder: Path) -> Any:
    """The cells in their order with the tokens of texts: all that no clock decides."""
    lines = [json.loads(line) for line in (folder / "run" / CELLS).read_bytes().splitlines()[1:]]
    for name in (RUN, RESULTS):
        json.loads((folder / "run" / name).read_bytes())
    return [(line["key"], line.get("tokens")) for line in lines]


BENCH = Subject(
    "a bench",
    words=lambda folder: _words(folder / "run"),
    journal=lambda folder: folder / "run" / CELLS,
    finished=lambda folder: (folder / "run" / RESULTS).exists(),
    content=_results,
    lines=lambda folder: (folder / "run" / CELLS).read_bytes().splitlines(),
)


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
    """Runs the trials on disks of so many KiB; None where this machine lets nobody mount one."""
    if not shutil.which("unshare"):
        return None
    result = SoakResult("full disk, a small one")
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        expected = in_peace(base / "peace")
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
            wrong = wrong or _sound(whole, expected, whole_lines(Path(f"{said}.kept", CELLS)))
            result.tried(f"{kib} KiB", wrong and f"{wrong} {done.stderr[-300:]}")
    return result
