"""The measurements are commands that can be called as their callers call them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from benchmarks.__main__ import app
from benchmarks.kernels import round as rounds
from benchmarks.kernels.gpu import PARTS, REHEARSAL, Part

COMMANDS = typer.main.get_command(app)


@pytest.mark.parametrize("part", [*PARTS, *REHEARSAL], ids=lambda part: part.command[:40])
def test_a_part_of_the_gpu_measurement_is_a_command(part: Part, tmp_path: Path) -> None:
    name, *arguments = part.words(tmp_path)
    command = COMMANDS.get_command(None, name)  # type: ignore[attr-defined]
    command.make_context(name, arguments)


def test_the_gpu_measurement_ends_within_ten_minutes() -> None:
    assert sum(part.seconds for part in PARTS) < 600


def test_the_rounds_numbers_are_drawn_where_they_vary(tmp_path: Path) -> None:
    usual = {"vocab": 32_000, "nodes": 64, "rows": 1, "text": 1_000}
    sizes = [usual, usual | {"vocab": 4_000}, usual | {"nodes": 16}]
    rows = [{"pair": "sequoia, traversal", **size, "ms": 1.0 + size["nodes"]} for size in sizes]
    rounds.draw(rows, tmp_path, title="a machine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["round-nodes.png", "round-vocab.png"]


@pytest.mark.thorough
def test_the_gpu_measurement_is_rehearsed(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks", "gpu", "--rehearse", "--to", str(tmp_path)]
    subprocess.run(words, check=True, timeout=900)
    ended = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["parts"]
    assert [(part["part"], part["exit"]) for part in ended] == [(part.name, 0) for part in REHEARSAL]
