"""Files of texts whose writing is killed, or finds no room: nothing is lost, and the next run goes on."""

from __future__ import annotations

import json
import random
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.soak.processes import forked, server
from tests.soak.result import SoakResult

PROMPTS = 24
WORDS = ("--temperature", 0.8, "--seed", 3, "--max-new-tokens", 8, "--rows", 4, "-o", "budget=4")


def _words(base: Path, out: Path) -> list[object]:
    return ["generate", "--prompts", base / "prompts.txt", "--out", out, *WORDS]


def _texts(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in out.read_bytes().splitlines()]
    return [{name: value for name, value in line.items() if name != "statistics"} for line in lines]


def _whole_lines(part: Path) -> bytes:
    content = part.read_bytes() if part.exists() else b""
    return content[: content.rfind(b"\n") + 1]


def killed_texts(runs: int, *, seed: int = 0, most: int = 4, context: Any = None) -> SoakResult:
    """`runs` files of texts; each is killed, or cannot grow, up to `most` times before it may end.

    `context`: of multiprocessing; see `forked`.
    """
    result, rng = SoakResult("SIGKILL and full disks in a file of texts"), random.Random(seed)
    context = context or server()
    with tempfile.TemporaryDirectory() as temporary:
        base = Path(temporary)
        (base / "prompts.txt").write_text("".join(f"Count from {n} to {n + 5}:\n" for n in range(PROMPTS)))
        began = time.perf_counter()
        code, said = forked(_words(base, base / "peace.jsonl"), base / "said", context=context).finished()
        whole, expected = time.perf_counter() - began, _texts(base / "peace.jsonl")
        assert code == 0, said
        size = (base / "peace.jsonl").stat().st_size
        kills = full = left = 0
        for number in range(runs):
            out, kept, wrong = base / f"{number}.jsonl", b"", None
            part = base / f"{number}.jsonl.part"
            for _ in range(rng.randrange(1, most + 1)):
                if rng.random() < 0.5:
                    largest = len(kept) + rng.randrange(size)
                    code, said = forked(
                        _words(base, out), base / "said", largest=max(largest, 400), context=context
                    ).finished()
                    full += code == 1
                    if code == 1 and not said.rstrip().splitlines()[-1].startswith("Error: "):
                        wrong = wrong or f"a full disk was no sentence: {said[-500:]}"
                else:
                    one = forked(_words(base, out), base / "said", context=context)
                    one.process.join(rng.uniform(0, whole))
                    one.process.kill()
                    one.process.join()
                    kills += one.process.exitcode != 0
                if out.exists():
                    break
                now = _whole_lines(part)
                if not now.startswith(kept):
                    wrong = wrong or "texts that were on disk are gone or changed"
                kept = now
            left += max(kept.count(b"\n") - 1, 0)
            if part.exists() or not out.exists():
                code, said = forked(_words(base, out), base / "said", context=context).finished()
                wrong = wrong or (f"the run that went on ended with {code}: {said[-500:]}" if code else None)
            if not wrong and _texts(out) != expected:
                wrong = "the texts are not those of a run in peace"
            if not wrong and not set(kept.splitlines()[1:]) <= set(out.read_bytes().splitlines()):
                wrong = "a text that was on disk was written again"
            result.tried("run", wrong or ("a part is left" if part.exists() else None))
        figures = f"{kills} and {full} full disks, which left {left} of {runs * PROMPTS} texts to go on from"
        result.figures["kills"] = figures
    return result
