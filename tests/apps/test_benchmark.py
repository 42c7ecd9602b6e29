"""`python -m benchmarks`: on the zoo's smallest models."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def measure(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    from benchmarks.__main__ import app

    yield lambda *arguments: CliRunner().invoke(app, [*map(str, arguments)])
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        del sys.modules[name]


def test_verifiers_on_prompts_from_files(measure, tmp_path):
    (tmp_path / "gsm8k_test.jsonl").write_text('{"question": "What is 2 + 3?"}\n')
    (tmp_path / "humaneval.jsonl").write_text('{"prompt": "def f(x):\\n"}\n')
    (tmp_path / "wikitext2_test.txt").write_text("The town lies on the river. " * 30 + "\n")
    few = ["--prompts", 1, "--tokens", 5, "--branching", 2, "--repetitions", 1]
    result = measure("verifiers", "traversal", "--data", tmp_path, *few)
    assert result.exit_code == 0, result.output
    head, _, baseline, traversal = result.stdout.splitlines()
    assert "3 prompts" in head
    assert "trees of 2 nodes" in head
    assert baseline.split()[0] == "recursive-rejection"
    assert "+0.0% (+0.0% to +0.0%)" in baseline
    name, mean, low, _, high = traversal.split()[:5]
    assert name == "traversal"
    assert 1 <= float(low) <= float(mean) <= float(high) <= 2


def test_what_cannot_be_read_is_one_sentence(measure):
    result = measure("verifiers", "--data", "/no/such")
    assert result.exit_code == 1
    (sentence,) = result.stderr.splitlines()
    assert "cannot be read" in sentence


def test_packed_trees_compute_less_and_hold_one_state(measure, monkeypatch):
    few = ["packed", "--target", "mamba2-draft", "--context", "9", "--repetitions", "2"]
    result = measure(*few)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()[2:]]
    counts = [tuple(map(int, line[3:5])) for line in lines if line[0] == "depth"]
    # Packed, with snapshots, recomputing, and by paths.
    assert counts == [
        *[(15, 1), (15, 16), (15, 1), (32, 8)],
        *[(31, 1), (31, 32), (31, 1), (80, 16)],
        *[(63, 1), (63, 64), (63, 1), (192, 32)],
    ]
    assert all(float(line[3].rstrip("x")) > 2 for line in lines if line[0] != "depth")
    monkeypatch.setattr("benchmarks.kernels.packed.CLOSE", 0.0)
    result = measure(*few, "--deepest", "4")
    assert result.exit_code == 1
    assert "Packed and unrolled logits of mamba2-draft differ by" in result.stderr


def test_the_help_parts_times_from_research_and_names_every_measurement(measure, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    help_text = measure("--help").stdout
    times, research = help_text.split("Times of kernels and passes")[1].split("Research questions")
    assert {line.split()[1] for line in times.splitlines() if line.startswith("│")} == {
        *(
            "captured",
            "first-token",
            "gpu",
            "kernels",
            "offloaded",
            "packed",
            "prefix-cost",
            "round",
            "speed",
        ),
    }
    assert {line.split()[1] for line in research.splitlines() if line.startswith("│")} == {
        *("agreement", "blocks", "certainty", "constraints", "families", "growth", "half-precision"),
        *("level", "optimum", "recipes", "shapes", "verifiers"),
    }
