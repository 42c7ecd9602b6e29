"""Everything that needs a GPU, in one command: whoever has one for ten minutes learns all of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import attrs
import torch
import typer

from draftwood.apps.files.machine import device_name, versions
from draftwood.base.errors import DraftwoodError


@attrs.frozen
class Part:
    """One measurement, run as a separate process, so that none ends another.

    Attributes:
        name: of its file.
        command: of `python -m benchmarks`; `{to}` stands for the folder.
        seconds: that it may take.
    """

    name: str
    command: str
    seconds: int

    def words(self, folder: Path) -> list[str]:
        """The arguments of `python -m benchmarks`."""
        return [word.replace("{to}", str(folder)) for word in self.command.split()]


_GRAPHS = "--device cuda --dtype bfloat16 --capture cuda-graphs --nodes 1,16,64"
_SHAPES = "--target random-7b --draft random-68m"

PARTS = (
    Part("kernels", "kernels --csv {to}/kernels.csv", 150),
    Part("captured-7b", f"captured {_SHAPES} {_GRAPHS} --tokens 48 --prompts 1 --repetitions 20", 150),
    Part("captured-zoo", f"captured {_GRAPHS} --tokens 64", 120),
    Part(
        "round",
        "round --device cuda --vocab 32000 --vocab 128000 --nodes 16 --nodes 64 --rows 1 --rows 8 "
        "--rounds 10 --to {to}/round",
        70,
    ),
    Part("first-token", "first-token --device cuda --dtype bfloat16 --length 256", 40),
    Part("offloaded", "offloaded --target random-7b --device cuda --dtype bfloat16", 60),
)
"""What is run, the most telling first; together under ten minutes."""

REHEARSAL = (
    Part(
        "captured",
        "captured --target random-1m --draft random-1m --tokens 8 --prompts 1 --nodes 1,4 --repetitions 2",
        240,
    ),
    Part("round", "round --vocab 4000 --nodes 4 --nodes 8 --rounds 3 --to {to}/round", 120),
    Part("first-token", "first-token --target llama-7m --length 16 --repetitions 2", 120),
    Part("offloaded", "offloaded --target random-1m --repetitions 2", 120),
)
"""The same commands, small, on the CPU: what a GPU is not needed to find out."""


def run(part: Part, folder: Path) -> dict[str, Any]:
    """Runs a part and returns its result; its output is written to the folder."""
    started = perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks", *part.words(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=part.seconds,
            check=False,
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as error:
        code, output = None, error.stdout or b""
    (folder / f"{part.name}.txt").write_bytes(output)
    seconds = round(perf_counter() - started, 1)
    return {"part": part.name, "command": part.command, "exit": code, "seconds": seconds}


def gpu(
    to: Annotated[Path, typer.Option(help="The folder that all is written to.", file_okay=False)] = Path(
        "gpu"
    ),
    rehearse: Annotated[bool, typer.Option("--rehearse", help="Small, on the CPU: do they run?")] = False,
) -> None:
    """Everything that needs a GPU, into one folder.

    Kernels, captured rounds at the shapes of a 7B target, rounds at real vocabularies, streamed weights.
    Takes under ten minutes, and each part has its own limit. summary.json says what ran and how it
    ended; the other files are what the parts printed.

    \b
    Examples:
      python -m benchmarks gpu --to h200
    """
    if not (rehearse or torch.cuda.is_available()):
        raise DraftwoodError(
            "This measures a CUDA GPU, and torch finds none here; --rehearse tries the commands."
        )
    to.mkdir(parents=True, exist_ok=True)
    summary: dict[str, Any] = {"device": device_name(), "versions": versions(), "parts": []}
    for part in REHEARSAL if rehearse else PARTS:
        typer.echo(f"{part.name} ...", nl=False)
        summary["parts"].append(run(part, to))
        (to / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        ended = summary["parts"][-1]
        how = "out of time" if ended["exit"] is None else "done" if ended["exit"] == 0 else "failed"
        typer.echo(f" {how}, {ended['seconds']:.0f} s")
    failed = [part["part"] for part in summary["parts"] if part["exit"] != 0]
    if failed:
        raise DraftwoodError(f"{', '.join(failed)} did not end well; their files in {str(to)!r} say why.")
